"""Mutation testing: do the tests fail where the code that decides is another?"""
