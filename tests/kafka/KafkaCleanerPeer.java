// Kafka's own cleaner and retention on a log directory, at a given time and without a broker.
//
// A case comes as a line of JSON and is answered with one, as bench/turns.py has it:
//
//     what     "clean": as the cleaner's thread does it, once, if the log is due; "retain": as LogManager's clean-up does;
//              "bench": cleaning by the clock of the machine, with a map of map_bytes, to be measured
//     parent   the directory with the checkpoints; folder: the partition's folder in it, named topic-partition
//     config   Kafka's keys of a topic
//     now      what time it is, from loading the log to closing it; not for "bench"
//     start    the log start offset that the checkpoint has, else 0
//     clean    whether the log was closed in order
//
// The answer to "clean" is how far the log is clean now, or null where it was not due; to "retain" the log start offset;
// to "bench" the seconds by the clock and of the processor, of all threads.
// What is broken is answered as {"error": class and message}. Files that Kafka would delete after a delay stay, named
// .deleted.
//
// tests/kafka_jvm.py starts it, with a compiler that knows no type arguments and no lambdas.

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.function.Supplier;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.PreCleanStats;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class KafkaCleanerPeer {

    private static final int MAP_BYTES = 1 << 20;  // for twenty times the keys of the largest log
    private static final int IO_BYTES = 1 << 20;
    private static final int DAY_MS = 86400000;

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = cases.readLine()) != null) {
            Map answer = new HashMap();
            try {
                answer.put("answer", answer(json.readTree(line)));
            } catch (Throwable error) {
                answer.put("answer", Collections.singletonMap("error", error.toString()));
            }
            System.out.println(json.writeValueAsString(answer));
            System.out.flush();
        }
    }

    private static Object answer(JsonNode what) throws Exception {
        Map config = new HashMap();
        Iterator names = what.get("config").fieldNames();
        while (names.hasNext()) {
            String name = (String) names.next();
            config.put(name, what.get("config").get(name).asText());
        }
        boolean measured = what.get("what").asText().equals("bench");
        Time time = measured ? Time.SYSTEM : new FixedTime(what.get("now").asLong());
        File parent = new File(what.get("parent").asText());
        LogDirFailureChannel failures = new LogDirFailureChannel(1);
        // Never started, it forgets what it is given: nothing runs later, and nothing beside.
        KafkaScheduler scheduler = new KafkaScheduler(1);
        UnifiedLog log = UnifiedLog.create(
            new File(parent, what.get("folder").asText()), new LogConfig(config), what.get("start").asLong(), 0L,
            scheduler, new BrokerTopicStats(), time, 900000, new ProducerStateManagerConfig(DAY_MS, true), 600000,
            failures, what.get("clean").asBoolean(), Optional.empty());
        try {
            log.updateHighWatermark(log.logEndOffset());
            if (what.get("what").asText().equals("retain")) {
                log.deleteOldSegments();
                return Long.valueOf(log.logStartOffset());
            }
            if (measured) {
                return measure(log, parent, time, failures, what.get("map_bytes").asInt());
            }
            return clean(log, parent, time, failures);
        } finally {
            log.close();
        }
    }

    private static Long clean(UnifiedLog log, File parent, Time time, LogDirFailureChannel failures) throws Exception {
        LogCleanerManager manager = manager(log, parent, failures);
        Optional due = manager.grabFilthiestCompactedLog(time, new PreCleanStats());
        if (!due.isPresent()) {
            return null;
        }
        Long end = (Long) cleaner(time, MAP_BYTES).clean((LogToClean) due.get()).getKey();
        manager.doneCleaning((TopicPartition) log.topicPartition(), parent, end.longValue());
        return end;
    }

    private static Object measure(UnifiedLog log, File parent, Time time, LogDirFailureChannel failures, int mapBytes)
            throws Exception {
        Optional due = manager(log, parent, failures).grabFilthiestCompactedLog(time, new PreCleanStats());
        Cleaner cleaner = cleaner(time, mapBytes);
        long started = System.nanoTime();
        long used = processorNanoseconds();
        cleaner.clean((LogToClean) due.get());
        return Arrays.asList(
            new Object[] {
                Double.valueOf((System.nanoTime() - started) / 1e9), Double.valueOf((processorNanoseconds() - used) / 1e9)
            });
    }

    private static long processorNanoseconds() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    private static LogCleanerManager manager(UnifiedLog log, File parent, LogDirFailureChannel failures) {
        ConcurrentHashMap logs = new ConcurrentHashMap();
        logs.put(log.topicPartition(), log);
        return new LogCleanerManager(Collections.singletonList(parent), logs, failures);
    }

    private static Cleaner cleaner(Time time, int mapBytes) throws Exception {
        return new Cleaner(
            0, new SkimpyOffsetMap(mapBytes), IO_BYTES, IO_BYTES, 0.9,
            new Throttler(Double.MAX_VALUE, 300L, "cleaner", "bytes", time), time,
            new Consumer() {
                public void accept(Object partition) {
                }
            });
    }

    private static class FixedTime implements Time {

        private final long nowMs;

        FixedTime(long nowMs) {
            this.nowMs = nowMs;
        }

        public long milliseconds() {
            return nowMs;
        }

        public long nanoseconds() {
            return System.nanoTime();
        }

        public void sleep(long ms) {
        }

        public void waitObject(Object object, Supplier condition, long deadlineMs) {
            throw new UnsupportedOperationException();
        }
    }
}
