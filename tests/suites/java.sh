# javac, and a Java program: threads, garbage collections, processes, files, sockets, null pointers caught by signals.
# needs: java javac
cat >Main.java <<'J'
import java.io.*; import java.net.*; import java.nio.file.*; import java.util.*; import java.util.concurrent.*; import java.util.stream.*;
public class Main {
  static volatile Object sink; static int deep(int n) { return 1 + deep(n + 1); }
  static String string;
  public static void main(String[] a) throws Exception {
    int nulls = 0; for (int i = 0; i < 100000; i++) try { string = i % 2 == 0 ? null : "x"; nulls += string.length() - 1; } catch (NullPointerException e) { nulls++; }
    System.out.println("nulls " + nulls);
    int over = 0; for (int i = 0; i < 20; i++) try { deep(0); } catch (StackOverflowError e) { over++; } System.out.println("overflows " + over);
    ExecutorService pool = Executors.newFixedThreadPool(8); List<Future<Long>> all = new ArrayList<>();
    for (int t = 0; t < 64; t++) { final int s = t; all.add(pool.submit(() -> { long x = s; for (int i = 0; i < 200000; i++) { x = x * 31 + i; if (i % 100 == 0) sink = new byte[1000]; if (i % 50000 == 0) Thread.sleep(1); } return x; })); }
    long sum = 0; for (Future<Long> f : all) sum += f.get(); pool.shutdown(); System.out.println("sum " + sum);
    System.gc();
    for (int i = 0; i < 10; i++) { Process p = new ProcessBuilder("sh", "-c", "echo child " + i + "; exit " + i).start(); System.out.print(new String(p.getInputStream().readAllBytes())); System.out.println("exit " + p.waitFor()); }
    Path f = Files.createTempFile(Path.of("."), "x", "y"); Files.writeString(f, "hello".repeat(10000)); System.out.println(Files.readString(f).hashCode()); Files.delete(f);
    ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    Thread th = new Thread(() -> { try { for (int i = 0; i < 200; i++) try (Socket s = server.accept()) { s.getOutputStream().write(s.getInputStream().read()); } } catch (IOException e) { System.out.println(e); } }); th.start();
    int got = 0; for (int i = 0; i < 200; i++) try (Socket s = new Socket(server.getInetAddress(), server.getLocalPort())) { s.getOutputStream().write(i); got += s.getInputStream().read(); } th.join(); System.out.println("echo " + got);
    for (int i = 0; i < 2000; i++) { Thread x = new Thread(() -> sink = new Object()); x.start(); if (i % 20 == 0) x.join(); }
    Thread t = new Thread(() -> { try { Thread.sleep(100000); } catch (InterruptedException e) { System.out.println("interrupted"); } }); t.start(); Thread.sleep(20); t.interrupt(); t.join();
    System.out.println(IntStream.range(0, 1000000).parallel().mapToLong(i -> i * (long) i).sum());
    Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println("hook"))); System.exit(7);
  }
}
J
javac Main.java; echo "javac: exit code $?"
for options in -Xmx200m "-Xmx200m -XX:+UseSerialGC" "-Xmx200m -XX:+UseZGC" "-Xint" "-XX:TieredStopAtLevel=1"; do
	java $options Main 2>&1; echo "java $options: exit code $?"
done
ls | grep hs_err; true
