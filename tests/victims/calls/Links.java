// SPDX-License-Identifier: MIT OR Apache-2.0
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;

/** Asks for links that cannot be, as often as it is told, in four threads. */
class Links {
    static volatile boolean bad;

    static void ask(int times) {
        for (int i = 0; i < times; i++) {
            try {
                Files.createLink(Path.of("/nowhere/link"), Path.of("/nowhere/file"));
                bad = true;
            } catch (NoSuchFileException expected) {
                // As it must be.
            } catch (Exception other) {
                bad = true;
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        int times = Integer.parseInt(arguments[0]);
        Thread[] threads = new Thread[4];
        for (int i = 0; i < 4; i++) {
            threads[i] = new Thread(() -> ask(times / 4));
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.exit(bad ? 1 : 0);
    }
}
