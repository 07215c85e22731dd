// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads that make garbage and keep some of it, until a line of input comes. Prints how many rounds were made, and how many were
// wrong.
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;

public class Churn {
	static volatile boolean stop;

	static long round(byte[][] kept, int number) {
		byte[] fresh = new byte[1024 + number % 4096];
		java.util.Arrays.fill(fresh, (byte) number);
		kept[number % kept.length] = fresh;
		CRC32 sum = new CRC32();
		sum.update(fresh);
		StringBuilder text = new StringBuilder();
		for (int i = 0; i < 20; i++)
			text.append(number + i).append(',');
		return sum.getValue() + text.toString().hashCode();
	}

	public static void main(String[] words) throws Exception {
		AtomicLong rounds = new AtomicLong(), wrong = new AtomicLong();
		Thread[] threads = new Thread[3];
		for (int i = 0; i < threads.length; i++) {
			threads[i] = new Thread(() -> {
				byte[][] kept = new byte[2000][];
				for (int number = 0; !stop; number = (number + 1) % 100000) {
					if (round(kept, number) != round(kept, number))
						wrong.incrementAndGet();
					byte[] old = kept[(number + 7) % kept.length];
					if (old != null && old[0] != old[old.length - 1])
						wrong.incrementAndGet();
					rounds.incrementAndGet();
				}
			});
			threads[i].start();
		}
		System.out.println("ready");
		System.in.read();
		stop = true;
		for (Thread thread : threads)
			thread.join();
		System.out.println(rounds + " " + wrong);
		System.exit(wrong.get() == 0 ? 0 : 1);
	}
}
