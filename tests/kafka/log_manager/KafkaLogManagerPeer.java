// Kafka's own LogManager and LogCleaner on log directories, without a broker, with a clock that only moves when it is told.
//
// A request comes as a line of JSON and is answered with one, as bench/turns.py has it:
//
//     open     dirs: log.dirs; broker: Kafka's keys of the topics' defaults; topics: keys by topic; intervals: of the
//              scheduled tasks; now; marks: high watermarks by folder; without a mark it is 0
//     tick     now: move the clock there, do the scheduled tasks that are due, and clean until nothing is due
//     append   folder, batch: base64 of batches, appended as by a producer
//     delete   folder: delete the partition, as when its topic is deleted
//     records  of each log: [offset, CRC-32 of the record] of all records that a consumer can read, in order
//     end      clean: whether the manager is shut down, or left as by a crash
//
// "open", "tick" and "append" are answered with the state of each log, by folder, and with what cannot be used or
// cleaned. What fails is answered as {"error": class and message}.
//
// The scheduler has no threads. A task that was due several times runs once, and tasks that are due together run in the
// order in which they were given. The cleaner's thread is not started: its work is done in the middle of a tick. Of logs
// with the same dirty ratio, Kafka cleans the first in the order of a hash map, which says nothing. Here the cleaner sees
// the logs in the order of their folders.
//
// tests/kafka_jvm.py starts it, with a compiler that knows no type arguments and no lambdas.

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedChannelException;
import java.util.AbstractMap;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.Delayed;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.zip.CRC32;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.KafkaStorageException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.metadata.ConfigRepository;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.FileLock;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogCleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

import kafka.log.LogManager;
import scala.collection.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractFunction5;

public class KafkaLogManagerPeer {

    private static final long MAP_BYTES = 1 << 20;  // for twenty times the keys of the largest log
    private static final int IO_BYTES = 1 << 20;
    private static final int MOST_CLEANS = 200;
    // A round can delete segments below the log start, so that a log is due in the next round.
    private static final int IDLE_ROUNDS = 2;

    private static Clock clock;
    private static Tasks tasks;
    private static LogManager manager;
    private static OwnCleaner cleaner;
    private static LogDirFailureChannel failures;
    private static List dirs;
    // The folders of logs that the cleaner does not see.
    private static Set leftOut = new TreeSet();

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = requests.readLine()) != null) {
            Map answer = new HashMap();
            try {
                answer.put("answer", answer(json.readTree(line)));
            } catch (Throwable error) {
                StackTraceElement[] trace = error.getStackTrace();
                String where = trace.length == 0 ? "" : " at " + trace[0];
                answer.put("answer", Collections.singletonMap("error", error.toString() + where));
            }
            System.out.println(json.writeValueAsString(answer));
            System.out.flush();
        }
    }

    private static Object answer(JsonNode what) throws Exception {
        String verb = what.get("what").asText();
        if (verb.equals("open")) {
            open(what);
            return state();
        }
        if (verb.equals("tick")) {
            leftOut.clear();
            Iterator folders = what.get("leftOut").elements();
            while (folders.hasNext()) {
                leftOut.add(((JsonNode) folders.next()).asText());
            }
            tick(what.get("now").asLong());
            return state();
        }
        if (verb.equals("append")) {
            UnifiedLog log = log(what.get("folder").asText());
            byte[] batch = Base64.getDecoder().decode(what.get("batch").asText());
            log.appendAsLeader(MemoryRecords.readableRecords(ByteBuffer.wrap(batch)), 0);
            log.updateHighWatermark(log.logEndOffset());
            tasks.runDue();
            return state();
        }
        if (verb.equals("delete")) {
            manager.asyncDelete(log(what.get("folder").asText()).topicPartition(), false, true, false);
            return state();
        }
        if (verb.equals("records")) {
            return records();
        }
        end(what.get("clean").asBoolean());
        return null;
    }

    private static void open(JsonNode what) throws Exception {
        clock = new Clock(what.get("now").asLong());
        tasks = new Tasks();
        failures = new LogDirFailureChannel(16);
        dirs = new ArrayList();
        Iterator places = what.get("dirs").elements();
        while (places.hasNext()) {
            dirs.add(new File(((JsonNode) places.next()).asText()));
        }
        JsonNode intervals = what.get("intervals");
        final JsonNode topics = what.get("topics");
        ConfigRepository settings = new ConfigRepository() {
            public Properties config(ConfigResource resource) {
                Properties found = new Properties();
                if (topics.has(resource.name())) {
                    found.putAll(entries(topics.get(resource.name())));
                }
                return found;
            }
        };
        CleanerConfig cleaning = new CleanerConfig(1, MAP_BYTES, 0.9, IO_BYTES, IO_BYTES, Double.MAX_VALUE, 0L, true);
        manager = new LogManager(
            (Seq) CollectionConverters.asScala(dirs), (Seq) CollectionConverters.asScala((List) new ArrayList()),
            settings, new LogConfig(entries(what.get("broker"))), cleaning, 1,
            intervals.get("flush").asLong(), intervals.get("recovery_points").asLong(),
            intervals.get("log_starts").asLong(), intervals.get("retention").asLong(), 900000,
            new ProducerStateManagerConfig(intervals.get("producer_expiration").asInt(), true), 600000, tasks,
            new BrokerTopicStats(), failures, clock, false, intervals.get("initial_delay").asLong(),
            new AbstractFunction5() {
                public Object apply(Object config, Object where, Object logs, Object channel, Object time) {
                    try {
                        cleaner = new OwnCleaner(
                            (CleanerConfig) config, (List) where, (ConcurrentMap) logs, (LogDirFailureChannel) channel,
                            (Time) time);
                        return cleaner;
                    } catch (Exception error) {
                        throw new RuntimeException(error);
                    }
                }
            });
        HashSet names = new HashSet();
        Iterator each = topics.fieldNames();
        while (each.hasNext()) {
            names.add(each.next());
        }
        manager.startup(CollectionConverters.asScala((java.util.Set) names), new AbstractFunction1() {
            public Object apply(Object log) {
                return Boolean.FALSE;
            }
        });
        takeOffline();
        JsonNode marks = what.get("marks");
        Iterator logs = logs().values().iterator();
        while (logs.hasNext()) {
            UnifiedLog log = (UnifiedLog) logs.next();
            JsonNode mark = marks.get(log.dir().getName());
            log.updateHighWatermark(Math.min(mark == null ? 0L : mark.asLong(), log.logEndOffset()));
        }
    }

    private static void tick(long nowMs) throws Exception {
        clock.nowMs = nowMs;
        tasks.runDue();
        takeOffline();
        cleaner.cleanAll();
        takeOffline();
        tasks.runOnceDue();
    }

    private static void takeOffline() {
        for (int number = 0; number < dirs.size(); number++) {
            String dir = ((File) dirs.get(number)).getAbsolutePath();
            if (failures.hasOfflineLogDir(dir) && manager.isLogDirOnline(dir)) {
                manager.handleLogDirFailure(dir);
            }
        }
    }

    private static void end(boolean clean) throws Exception {
        if (clean) {
            manager.shutdown(-1L);
            return;
        }
        Iterator logs = logs().values().iterator();
        while (logs.hasNext()) {
            ((UnifiedLog) logs.next()).closeHandlers();
        }
        cleaner.shutdown();  // it has no threads; this only removes its metrics, which would keep its memory
        Iterator locks = CollectionConverters.asJava((Seq) manager.dirLocks()).iterator();
        while (locks.hasNext()) {
            try {
                ((FileLock) locks.next()).destroy();
            } catch (ClosedChannelException error) {
                continue;  // of a directory that went offline
            }
        }
    }

    private static Map logs() {
        TreeMap found = new TreeMap();
        Iterator logs = CollectionConverters.asJava((scala.collection.Iterable) manager.allLogs()).iterator();
        while (logs.hasNext()) {
            UnifiedLog log = (UnifiedLog) logs.next();
            if (!log.isFuture()) {
                found.put(log.dir().getName(), log);
            }
        }
        return found;
    }

    private static UnifiedLog log(String folder) {
        return (UnifiedLog) logs().get(folder);
    }

    private static Map state() throws Exception {
        Map states = new HashMap();
        Iterator logs = logs().entrySet().iterator();
        while (logs.hasNext()) {
            Map.Entry each = (Map.Entry) logs.next();
            UnifiedLog log = (UnifiedLog) each.getValue();
            states.put(
                each.getKey(),
                new long[] {
                    log.logStartOffset(), log.logEndOffset(), log.recoveryPoint(), log.highWatermark(),
                    log.lastStableOffset()
                });
        }
        List offline = new ArrayList();
        List uncleanable = new ArrayList();
        for (int number = 0; number < dirs.size(); number++) {
            String dir = ((File) dirs.get(number)).getAbsolutePath();
            if (!manager.isLogDirOnline(dir)) {
                offline.add(((File) dirs.get(number)).getName());
            }
            Iterator partitions = cleaner.cleanerManager().uncleanablePartitions(dir).iterator();
            while (partitions.hasNext()) {
                uncleanable.add(partitions.next().toString());
            }
        }
        Map answer = new HashMap();
        answer.put("logs", states);
        answer.put("offline", offline);
        answer.put("uncleanable", uncleanable);
        return answer;
    }

    private static Map records() throws Exception {
        Map found = new HashMap();
        Iterator logs = logs().entrySet().iterator();
        while (logs.hasNext()) {
            Map.Entry each = (Map.Entry) logs.next();
            found.put(each.getKey(), records((UnifiedLog) each.getValue()));
        }
        return found;
    }

    private static List records(UnifiedLog log) throws Exception {
        List found = new ArrayList();
        long next = log.logStartOffset();
        while (next < log.logEndOffset()) {
            FetchDataInfo data = log.read(next, IO_BYTES, FetchIsolation.LOG_END, true);
            Iterator batches = data.records.batches().iterator();
            if (!batches.hasNext()) {
                break;
            }
            while (batches.hasNext()) {
                RecordBatch batch = (RecordBatch) batches.next();
                Iterator records = batch.iterator();
                while (records.hasNext() && !batch.isControlBatch()) {
                    Record record = (Record) records.next();
                    if (record.offset() >= log.logStartOffset()) {
                        found.add(new long[] {record.offset(), sum(record)});
                    }
                }
                next = batch.nextOffset();
            }
        }
        return found;
    }

    private static long sum(Record record) {
        CRC32 sum = new CRC32();
        add(sum, record.hasKey() ? record.key() : null);
        add(sum, record.hasValue() ? record.value() : null);
        Header[] headers = record.headers();
        for (int number = 0; number < headers.length; number++) {
            sum.update(headers[number].key().getBytes());
            byte[] value = headers[number].value();
            add(sum, value == null ? null : ByteBuffer.wrap(value));
        }
        sum.update(ByteBuffer.allocate(8).putLong(0, record.timestamp()));
        return sum.getValue();
    }

    private static void add(CRC32 sum, ByteBuffer data) {
        sum.update(data == null ? 0 : 1);
        if (data != null) {
            sum.update((ByteBuffer) data.duplicate());
        }
    }

    private static Map entries(JsonNode object) {
        Map found = new HashMap();
        Iterator names = object.fieldNames();
        while (names.hasNext()) {
            String name = (String) names.next();
            found.put(name, object.get(name).asText());
        }
        return found;
    }

    private static class OwnCleaner extends LogCleaner {

        private final LogCleaner.CleanerThread thread;

        OwnCleaner(CleanerConfig config, List dirs, ConcurrentMap logs, LogDirFailureChannel channel, Time time)
                throws Exception {
            super(config, dirs, new InOrder(logs), channel, time);
            thread = (LogCleaner.CleanerThread) LogCleaner.CleanerThread.class
                .getDeclaredConstructors()[0].newInstance(new Object[] {this, Integer.valueOf(0)});
        }

        public void startup() {
        }

        private int uncleanable() {
            int count = 0;
            for (int number = 0; number < dirs.size(); number++) {
                count += cleanerManager().uncleanablePartitions(((File) dirs.get(number)).getAbsolutePath()).size();
            }
            return count;
        }

        void cleanAll() {
            int idle = 0;
            for (int number = 0; number < MOST_CLEANS; number++) {
                Object before = thread.lastStats();
                int failed = uncleanable();
                thread.doWork();
                idle = thread.lastStats() == before && uncleanable() == failed ? idle + 1 : 0;
                if (idle == IDLE_ROUNDS) {
                    return;
                }
            }
            throw new IllegalStateException("cleans again and again");
        }
    }

    private static class InOrder extends AbstractMap implements ConcurrentMap {

        private final ConcurrentMap logs;

        InOrder(ConcurrentMap logs) {
            this.logs = logs;
        }

        public Set entrySet() {
            TreeMap folders = new TreeMap();
            Iterator each = logs.entrySet().iterator();
            while (each.hasNext()) {
                Map.Entry entry = (Map.Entry) each.next();
                File folder = ((UnifiedLog) entry.getValue()).dir();
                if (!leftOut.contains(folder.getName())) {
                    folders.put(folder.getPath(), entry);
                }
            }
            return new LinkedHashSet(folders.values());
        }

        public Object get(Object partition) {
            return logs.get(partition);
        }

        public Object putIfAbsent(Object partition, Object log) {
            throw new UnsupportedOperationException();
        }

        public boolean remove(Object partition, Object log) {
            throw new UnsupportedOperationException();
        }

        public boolean replace(Object partition, Object log, Object other) {
            throw new UnsupportedOperationException();
        }

        public Object replace(Object partition, Object log) {
            throw new UnsupportedOperationException();
        }
    }

    private static class Tasks implements Scheduler {

        private final List waiting = new ArrayList();

        public void startup() {
        }

        public void shutdown() {
        }

        public void resizeThreadPool(int size) {
        }

        public ScheduledFuture schedule(String name, Runnable work, long delayMs, long periodMs) {
            Task task = new Task(work, clock.nowMs + delayMs, periodMs);
            waiting.add(task);
            return task;
        }

        void runDue() {
            Iterator each = new ArrayList(waiting).iterator();
            while (each.hasNext()) {
                Task task = (Task) each.next();
                if (task.dueMs <= clock.nowMs && !task.cancelled) {
                    run(task);
                }
            }
            runOnceDue();
        }

        void runOnceDue() {
            boolean ran = true;
            while (ran) {
                ran = false;
                Iterator each = new ArrayList(waiting).iterator();
                while (each.hasNext()) {
                    Task task = (Task) each.next();
                    if (task.dueMs <= clock.nowMs && task.periodMs <= 0 && !task.cancelled) {
                        run(task);
                        ran = true;
                    }
                }
            }
        }

        private void run(Task task) {
            if (task.periodMs > 0) {
                task.dueMs += ((clock.nowMs - task.dueMs) / task.periodMs + 1) * task.periodMs;
            } else {
                waiting.remove(task);
            }
            try {
                task.work.run();
            } catch (KafkaStorageException error) {
                return;  // as in KafkaScheduler; the directory goes offline
            }
        }
    }

    private static class Task implements ScheduledFuture {

        final Runnable work;
        final long periodMs;
        long dueMs;
        boolean cancelled;

        Task(Runnable work, long dueMs, long periodMs) {
            this.work = work;
            this.dueMs = dueMs;
            this.periodMs = periodMs;
        }

        public long getDelay(TimeUnit unit) {
            return 0;
        }

        public int compareTo(Object other) {
            return 0;
        }

        public boolean cancel(boolean interrupts) {
            cancelled = true;
            return true;
        }

        public boolean isCancelled() {
            return cancelled;
        }

        public boolean isDone() {
            return false;
        }

        public Object get() {
            return null;
        }

        public Object get(long timeout, TimeUnit unit) {
            return null;
        }
    }

    private static class Clock implements Time {

        long nowMs;

        Clock(long nowMs) {
            this.nowMs = nowMs;
        }

        public long milliseconds() {
            return nowMs;
        }

        public long nanoseconds() {
            return nowMs * 1000000;
        }

        public void sleep(long ms) {
        }

        public void waitObject(Object object, Supplier condition, long deadlineMs) {
            throw new UnsupportedOperationException();
        }
    }
}
