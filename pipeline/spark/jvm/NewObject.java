package lakelog;

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;

/** A stream whose bytes become an object when the stream is closed, unless the stream was cancelled before. */
final class NewObject extends CheckpointFileManager.CancellableFSDataOutputStream {
    private final PutOnClose bytes;

    NewObject(PutOnClose bytes) {
        super(bytes);
        this.bytes = bytes;
    }

    public void cancel() {
        bytes.cancel();
    }
}
