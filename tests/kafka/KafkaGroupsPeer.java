import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.kafka.tools.consumer.group.ConsumerGroupCommand;

/** Runs kafka-consumer-groups once for each line of arguments, and prints a line "----" after each. */
public class KafkaGroupsPeer {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = lines.readLine()) != null) {
            ConsumerGroupCommand.main(line.split(" "));
            System.out.println("----");
            System.out.flush();
        }
    }
}
