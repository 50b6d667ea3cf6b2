// Google Cloud Storage for tests: fake-gcs-server in memory, on loopback.
//
// It has the JSON API, which Hadoop and Arrow speak. What delta-rs needs of the XML API and
// fake-gcs-server lacks is here: the PUT of an object, with its condition, and `start-after`.
package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

type xmlAPI struct{ jsonAPI http.Handler }

func (api xmlAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fmt.Println(r.Method, r.RequestURI)
	root, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	isXML := !slices.Contains([]string{"storage", "upload", "download", "batch", "_internal"}, root)
	switch {
	case isXML && r.Method == http.MethodPut:
		api.putObject(w, r)
	case isXML && r.URL.Query().Has("start-after"):
		api.listObjects(w, r)
	default:
		api.jsonAPI.ServeHTTP(w, r)
	}
}

func (api xmlAPI) putObject(w http.ResponseWriter, r *http.Request) {
	bucket, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query := url.Values{"uploadType": {"media"}, "name": {name}}
	if generation := r.Header.Get("x-goog-if-generation-match"); generation != "" {
		query.Set("ifGenerationMatch", generation)
	}
	target := fmt.Sprintf("/upload/storage/v1/b/%s/o?%s", url.PathEscape(bucket), query.Encode())
	upload := httptest.NewRequest(http.MethodPost, target, r.Body)
	upload.Header = r.Header.Clone()
	answer := httptest.NewRecorder()
	api.jsonAPI.ServeHTTP(answer, upload)
	var object struct{ Etag, Generation string }
	if answer.Code == http.StatusOK && json.Unmarshal(answer.Body.Bytes(), &object) == nil {
		w.Header().Set("ETag", fmt.Sprintf("%q", object.Etag))
		w.Header().Set("x-goog-generation", object.Generation)
	}
	w.WriteHeader(answer.Code)
}

func (api xmlAPI) listObjects(w http.ResponseWriter, r *http.Request) {
	answer := httptest.NewRecorder()
	api.jsonAPI.ServeHTTP(answer, r)
	var listing fakestorage.ListBucketResult
	if err := xml.Unmarshal(answer.Body.Bytes(), &listing); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	first := r.URL.Query().Get("start-after")
	listing.Contents = slices.DeleteFunc(listing.Contents, func(object fakestorage.Contents) bool {
		return object.Key <= first
	})
	w.WriteHeader(answer.Code)
	xml.NewEncoder(w).Encode(listing)
}

func main() {
	address, bucket := os.Args[1], os.Args[2]
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener: true, PublicHost: address, ExternalURL: "http://" + address, Writer: io.Discard,
	})
	if err != nil {
		log.Fatal(err)
	}
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: bucket})
	log.Fatal(http.ListenAndServe(address, xmlAPI{server.HTTPHandler()}))
}
