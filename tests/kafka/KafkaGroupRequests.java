import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.Collections;
import org.apache.kafka.common.message.ConsumerGroupHeartbeatRequestData;
import org.apache.kafka.common.message.ConsumerGroupHeartbeatResponseData;
import org.apache.kafka.common.message.OffsetCommitRequestData;
import org.apache.kafka.common.message.StreamsGroupHeartbeatRequestData;
import org.apache.kafka.common.message.StreamsGroupHeartbeatResponseData;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.requests.AbstractRequest;
import org.apache.kafka.common.requests.ConsumerGroupHeartbeatRequest;
import org.apache.kafka.common.requests.OffsetCommitRequest;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.requests.StreamsGroupHeartbeatRequest;

/**
 * Sends requests to a broker that no client of the tests sends: a commit of an offset that expires, and the heartbeats of
 * two members, one of a streams group and one of a consumer group whose broker finds topics by a pattern. Each member
 * leaves after it has its assignment. The argument is the broker's port.
 */
public class KafkaGroupRequests {
    private static final short STREAMS_VERSION = 0;
    private static final short CONSUMER_VERSION = 1;
    private static final short EXPIRING_VERSION = 2;
    private static final int LEAVE = -1;

    public static void main(String[] args) throws Exception {
        Socket socket = new Socket("127.0.0.1", Integer.parseInt(args[0]));
        commitThatExpires(socket);
        int epoch = 0;
        boolean assigned = false;
        while (!assigned) {
            StreamsGroupHeartbeatResponseData answer = streamsBeat(socket, epoch);
            check(answer.errorCode());
            epoch = answer.memberEpoch();
            assigned = answer.activeTasks() != null && !answer.activeTasks().isEmpty();
            Thread.sleep(200);
        }
        streamsBeat(socket, LEAVE);
        epoch = 0;
        assigned = false;
        while (!assigned) {
            ConsumerGroupHeartbeatResponseData answer = consumerBeat(socket, epoch);
            check(answer.errorCode());
            epoch = answer.memberEpoch();
            assigned = answer.assignment() != null && !answer.assignment().topicPartitions().isEmpty();
            Thread.sleep(200);
        }
        consumerBeat(socket, LEAVE);
        socket.close();
    }

    private static void check(short error) {
        if (error != 0) {
            throw new IllegalStateException("the broker answered with error " + error);
        }
    }

    private static ConsumerGroupHeartbeatResponseData consumerBeat(Socket socket, int epoch) throws Exception {
        ConsumerGroupHeartbeatRequestData data = new ConsumerGroupHeartbeatRequestData();
        data.setGroupId("pattern").setMemberId("pattern-member").setMemberEpoch(epoch);
        if (epoch == 0) {
            data.setSubscribedTopicRegex("ord.*").setRebalanceTimeoutMs(45000);
            data.setTopicPartitions(Collections.EMPTY_LIST);
        }
        ByteBuffer answer = send(socket, new ConsumerGroupHeartbeatRequest.Builder(data).build(CONSUMER_VERSION));
        return new ConsumerGroupHeartbeatResponseData(new ByteBufferAccessor(answer), CONSUMER_VERSION);
    }

    private static void commitThatExpires(Socket socket) throws Exception {
        OffsetCommitRequestData.OffsetCommitRequestPartition partition =
            new OffsetCommitRequestData.OffsetCommitRequestPartition();
        partition.setPartitionIndex(1).setCommittedOffset(2L).setCommittedMetadata("expires");
        OffsetCommitRequestData.OffsetCommitRequestTopic topic = new OffsetCommitRequestData.OffsetCommitRequestTopic();
        topic.setName("orders").setPartitions(Collections.singletonList(partition));
        OffsetCommitRequestData data = new OffsetCommitRequestData();
        data.setGroupId("expiring").setGenerationIdOrMemberEpoch(-1).setRetentionTimeMs(3153600000000L);
        data.setTopics(Collections.singletonList(topic));
        send(socket, OffsetCommitRequest.Builder.forTopicNames(data).build(EXPIRING_VERSION));
    }

    private static StreamsGroupHeartbeatResponseData streamsBeat(Socket socket, int epoch) throws Exception {
        StreamsGroupHeartbeatRequestData data = new StreamsGroupHeartbeatRequestData();
        data.setGroupId("streaming").setMemberId("streams-member").setMemberEpoch(epoch);
        if (epoch == 0) {
            StreamsGroupHeartbeatRequestData.Subtopology part = new StreamsGroupHeartbeatRequestData.Subtopology();
            part.setSubtopologyId("0").setSourceTopics(Collections.singletonList("orders"));
            StreamsGroupHeartbeatRequestData.Topology topology = new StreamsGroupHeartbeatRequestData.Topology();
            topology.setEpoch(0).setSubtopologies(Collections.singletonList(part));
            StreamsGroupHeartbeatRequestData.KeyValue tag = new StreamsGroupHeartbeatRequestData.KeyValue();
            tag.setKey("zone").setValue("a");
            data.setTopology(topology).setRebalanceTimeoutMs(45000).setProcessId("process");
            data.setClientTags(Collections.singletonList(tag));
            data.setActiveTasks(Collections.EMPTY_LIST).setStandbyTasks(Collections.EMPTY_LIST);
            data.setWarmupTasks(Collections.EMPTY_LIST);
        }
        ByteBuffer answer = send(socket, new StreamsGroupHeartbeatRequest.Builder(data).build(STREAMS_VERSION));
        return new StreamsGroupHeartbeatResponseData(new ByteBufferAccessor(answer), STREAMS_VERSION);
    }

    /** The answer to a request, after its header. */
    private static ByteBuffer send(Socket socket, AbstractRequest request) throws Exception {
        RequestHeader header = new RequestHeader(request.apiKey(), request.version(), "golden", 1);
        ByteBuffer bytes = request.serializeWithHeader(header);
        DataOutputStream out = new DataOutputStream(socket.getOutputStream());
        out.writeInt(bytes.remaining());
        out.write(bytes.array(), bytes.arrayOffset() + bytes.position(), bytes.remaining());
        out.flush();
        DataInputStream in = new DataInputStream(socket.getInputStream());
        byte[] answer = new byte[in.readInt()];
        in.readFully(answer);
        int headerBytes = request.version() == EXPIRING_VERSION ? 4 : 5;
        return ByteBuffer.wrap(answer, headerBytes, answer.length - headerBytes);
    }
}
