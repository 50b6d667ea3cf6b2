package backfill_assets;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkContext$;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import scala.Option;

/**
 * How long the tasks of tagged jobs took: of each tag, those of the stage with the longest one.
 *
 * A client asks by SQL: reflect('backfill_assets.TaskTimes', 'taken', tag).
 */
public class TaskTimes extends SparkListener {
  /** What a tag begins with whose tasks are looked at. */
  private static final String PREFIX = "backfill-assets-tasks-";
  /** So many tags are remembered, and so many tasks of a stage; a run that was killed never asks. */
  private static final int MOST_TAGS = 100;
  private static final int MOST_TASKS = 1000000;
  /** So many times are told of a stage. */
  private static final int TOLD = 101;
  private static final long PATIENCE_MS = 2000;

  /** By tag, the stage that has the longest task. */
  private static final Map WORST = new LinkedHashMap();

  /** The stages that run now, by stage and attempt. */
  private final Map running = new HashMap();

  private static class Stage {
    final String tag;
    int[] times = new int[16];
    int count = 0;
    int longest = 0;
    String told = "";

    Stage(String tag) {
      this.tag = tag;
    }

    void add(long milliseconds) {
      if (count == MOST_TASKS) {
        return;
      }
      if (count == times.length) {
        times = Arrays.copyOf(times, 2 * count);
      }
      times[count++] = (int) Math.min(milliseconds, (long) Integer.MAX_VALUE);
    }

    /** Keep what is told of it, and no more. */
    void end() {
      int[] all = Arrays.copyOf(times, count);
      Arrays.sort(all);
      int told = Math.min(TOLD, count);
      StringBuilder text = new StringBuilder().append(count).append(':');
      for (int n = 0; n < told; n++) {
        long at = told == 1 ? 0 : (long) n * (count - 1) / (told - 1);
        text.append(n == 0 ? "" : ",").append(all[(int) at]);
      }
      this.told = text.toString();
      longest = all[count - 1];
      times = null;
    }
  }

  /** Goes through the queue of events behind all that were there before it. */
  private static class Mark implements SparkListenerEvent {
    final CountDownLatch passed = new CountDownLatch(1);

    public boolean logEvent() {
      return false;
    }
  }

  public void onStageSubmitted(SparkListenerStageSubmitted event) {
    Properties properties = event.properties();
    String tags = properties == null ? null : properties.getProperty("spark.job.tags");
    int from = tags == null ? -1 : tags.indexOf(PREFIX);
    if (from >= 0) {
      int end = tags.indexOf(',', from);
      String tag = end < 0 ? tags.substring(from) : tags.substring(from, end);
      running.put(
          key(event.stageInfo().stageId(), event.stageInfo().attemptNumber()), new Stage(tag));
    }
  }

  public void onTaskEnd(SparkListenerTaskEnd event) {
    Stage stage = (Stage) running.get(key(event.stageId(), event.stageAttemptId()));
    if (stage != null && event.taskInfo().successful() && event.taskMetrics() != null) {
      stage.add(event.taskMetrics().executorRunTime());
    }
  }

  public void onStageCompleted(SparkListenerStageCompleted event) {
    Stage stage =
        (Stage)
            running.remove(key(event.stageInfo().stageId(), event.stageInfo().attemptNumber()));
    if (stage == null || stage.count == 0) {
      return;
    }
    stage.end();
    synchronized (WORST) {
      Stage before = (Stage) WORST.get(stage.tag);
      if (before == null || before.longest < stage.longest) {
        WORST.put(stage.tag, stage);
      }
      Iterator tags = WORST.keySet().iterator();
      while (WORST.size() > MOST_TAGS) {
        tags.next();
        tags.remove();
      }
    }
  }

  public void onOtherEvent(SparkListenerEvent event) {
    if (event instanceof Mark) {
      ((Mark) event).passed.countDown();
    }
  }

  /**
   * What was seen of a tag, which is then forgotten: "tasks:ms,ms,...", ascending; of more than 101
   * tasks, the percentiles. Empty if nothing was seen.
   */
  public static String taken(String tag) throws InterruptedException {
    Option context = SparkContext$.MODULE$.getActive();
    if (context.isDefined()) {
      Mark mark = new Mark();
      ((SparkContext) context.get()).listenerBus().post(mark);
      mark.passed.await(PATIENCE_MS, TimeUnit.MILLISECONDS);
    }
    synchronized (WORST) {
      Stage stage = (Stage) WORST.remove(tag);
      return stage == null ? "" : stage.told;
    }
  }

  private static String key(int stage, int attempt) {
    return stage + "." + attempt;
  }
}
