import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.compress.SnappyCompression;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools, one after another, in one JVM. A line of standard input is the class of a tool and
 * its arguments, separated by tabs. The class can also be a class in KafkaTools. The answer is a line with the exit status and the sizes of standard output and
 * standard error, and then these bytes.
 */
public class KafkaTools {
    /** Ends a tool that calls exit. */
    static class Exited extends RuntimeException {
        final int status;

        Exited(int status) {
            super("exit " + status);
            this.status = status;
        }
    }

    /**
     * Compresses with snappy, as a producer compresses the records of batches. The arguments are a file of pieces and
     * the file for the results. In both files, each piece comes after its size, an int.
     */
    public static class Snappy {
        public static void main(String[] args) throws Exception {
            DataInputStream pieces = new DataInputStream(new BufferedInputStream(new FileInputStream(args[0])));
            DataOutputStream results = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(args[1])));
            while (pieces.available() > 0) {
                byte[] piece = new byte[pieces.readInt()];
                pieces.readFully(piece);
                ByteBufferOutputStream compressed = new ByteBufferOutputStream(piece.length + 64);
                OutputStream stream = new SnappyCompression.Builder().build().wrapForOutput(compressed, RecordBatch.MAGIC_VALUE_V2);
                stream.write(piece);
                stream.close();
                ByteBuffer written = compressed.buffer();
                results.writeInt(written.position());
                results.write(written.array(), 0, written.position());
            }
            pieces.close();
            results.close();
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        Exit.Procedure procedure = new Exit.Procedure() {
            public void execute(int status, String message) {
                throw new Exited(status);
            }
        };
        Exit.setExitProcedure(procedure);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = requests.readLine()) != null) {
            String[] words = line.split("\t");
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, "UTF-8"));
            System.setErr(new PrintStream(err, true, "UTF-8"));
            int status = run(words[0], (String[]) Arrays.copyOfRange(words, 1, words.length));
            System.out.flush();
            System.err.flush();
            byte[] printed = out.toByteArray();
            byte[] complained = err.toByteArray();
            answers.println(status + " " + printed.length + " " + complained.length);
            answers.write(printed, 0, printed.length);
            answers.write(complained, 0, complained.length);
            answers.flush();
        }
    }

    private static int run(String tool, String[] arguments) throws Exception {
        Class[] kinds = new Class[1];
        kinds[0] = String[].class;
        Method main = Class.forName(tool).getMethod("main", kinds);
        Object[] given = new Object[1];
        given[0] = arguments;
        try {
            main.invoke(null, given);
            return 0;
        } catch (InvocationTargetException failure) {
            Throwable cause = failure.getCause();
            while (cause != null && !(cause instanceof Exited)) {
                cause = cause.getCause();
            }
            if (cause != null) {
                return ((Exited) cause).status;
            }
            failure.getCause().printStackTrace();
            return 1;
        }
    }
}
