package weir.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** The scan of the bridge under the table's name: in plans, and in the progress of streams. */
final class NamedScan implements SupportsReportStatistics {
  private final String name;
  private final Scan inner;
  private final Statistics size;
  private boolean streams;

  NamedScan(String name, Scan inner, Statistics size) {
    this.name = name;
    this.inner = inner;
    this.size = size;
  }

  @Override
  public Statistics estimateStatistics() {
    return size;
  }

  @Override
  public StructType readSchema() {
    return inner.readSchema();
  }

  @Override
  public String description() {
    return name + " " + inner.description();
  }

  @Override
  public Batch toBatch() {
    return new ArrowBatch(inner.toBatch());
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    streams = true;
    return new Feed(name, inner.toMicroBatchStream(checkpoint));
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return inner.supportedCustomMetrics();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return inner.reportDriverMetrics();
  }

  /** Said without asking for partitions, which Python would plan; streams are read as rows. */
  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return streams ? ColumnarSupportMode.UNSUPPORTED : ColumnarSupportMode.SUPPORTED;
  }

  /** The stream of the bridge, which tells who it is and what waits. */
  private static final class Feed
      implements MicroBatchStream, SupportsTriggerAvailableNow, ReportsSourceMetrics {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String name;
    private final MicroBatchStream inner;

    Feed(String name, MicroBatchStream inner) {
      this.name = name;
      this.inner = inner;
    }

    private SupportsTriggerAvailableNow bounded() {
      return (SupportsTriggerAvailableNow) inner;
    }

    /** What Python told beside its offset: entries and bytes behind, summed over the shards. */
    @Override
    public Map<String, String> metrics(Optional<Offset> consumed) {
      Map<String, String> told = new HashMap<>(Map.of("table", name));
      Offset latest = bounded().reportLatestOffset();
      if (latest != null) {
        long entries = 0;
        long bytes = 0;
        JsonNode behind = parsed(latest).path("behind");
        for (JsonNode shard : behind) {
          entries += shard.path("entries").asLong();
          bytes += shard.path("bytes").asLong();
        }
        told.put("shardsBehind", Integer.toString(behind.size()));
        told.put("entriesBehind", Long.toString(entries));
        told.put("bytesBehind", Long.toString(bytes));
      }
      return told;
    }

    private static JsonNode parsed(Offset offset) {
      try {
        return JSON.readTree(offset.json());
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    }

    @Override
    public Offset initialOffset() {
      return inner.initialOffset();
    }

    @Override
    public Offset latestOffset() {
      return inner.latestOffset();
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
      return bounded().latestOffset(start, limit);
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
      return bounded().getDefaultReadLimit();
    }

    @Override
    public Offset reportLatestOffset() {
      return bounded().reportLatestOffset();
    }

    @Override
    public void prepareForTriggerAvailableNow() {
      bounded().prepareForTriggerAvailableNow();
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
      return inner.planInputPartitions(start, end);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return inner.createReaderFactory();
    }

    @Override
    public Offset deserializeOffset(String json) {
      return inner.deserializeOffset(json);
    }

    @Override
    public void commit(Offset end) {
      inner.commit(end);
    }

    @Override
    public void stop() {
      inner.stop();
    }

    @Override
    public String toString() {
      return "weir[" + name + "]";
    }
  }
}
