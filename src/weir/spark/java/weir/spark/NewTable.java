package weir.spark;

import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;

/** A table that the statement's own write creates, and that goes when the statement fails. */
final class NewTable implements Staged.Change {
  /** Makes the table, with the options of the write; without a write they are null. */
  interface Maker {
    WeirTable make(Map<String, String> write) throws TableAlreadyExistsException;
  }

  private final Maker maker;
  private final Runnable drop;
  private WeirTable made;

  NewTable(Maker maker, Runnable drop) {
    this.maker = maker;
    this.drop = drop;
  }

  private void make(Map<String, String> write) {
    try {
      made = maker.make(write);
    } catch (TableAlreadyExistsException error) {
      throw new IllegalStateException(error.getMessage(), error);
    }
  }

  @Override
  public WriteBuilder rows(LogicalWriteInfo info) {
    if (made == null) {
      make(info.options());
    }
    return made.newWriteBuilder(info);
  }

  @Override
  public void withoutRows() {
    make(null);
  }

  @Override
  public void abort() {
    if (made != null) {
      drop.run();
    }
  }
}
