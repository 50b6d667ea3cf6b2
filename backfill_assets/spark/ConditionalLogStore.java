package backfill_assets;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log store for S3, whose commits are conditional PUTs (If-None-Match: *).
 *
 * Delta's own looks whether the version is there and then writes it: a commit of another process in
 * between is overwritten. Hadoop's S3A has the condition as an option of createFile.
 */
public class ConditionalLogStore extends S3SingleDriverLogStore {
  public ConditionalLogStore(Configuration configuration) {
    super(configuration);
  }

  public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    if (overwrite.booleanValue()) {
      super.write(path, actions, overwrite, configuration);
      return;
    }
    // As a whole before the object is begun: to close one whose actions failed would publish it.
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      lines.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
    }
    FileSystem files = path.getFileSystem(configuration);
    try {
      FSDataOutputStream commit =
          (FSDataOutputStream)
              files.createFile(path).must("fs.option.create.conditional.overwrite", true).build();
      commit.write(lines.toByteArray());
      commit.close();
    } catch (IOException error) {
      // Not by its class, which is in a jar that this one is compiled without.
      if (error.getClass().getSimpleName().equals("RemoteFileChangedException")) {
        throw new FileAlreadyExistsException(path.toString());
      }
      throw error;
    }
  }
}
