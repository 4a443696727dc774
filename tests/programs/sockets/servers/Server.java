// An HTTP server and clients of the JDK: `java Server.java serve PORT`, `java Server.java ask HOST PORT REQUESTS`.
import com.sun.net.httpserver.HttpServer;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.SocketException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;

public class Server {
    static final int SMALL = 800, BIG = 3_000_000;

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("serve")) {
            serve(Integer.parseInt(arguments[1]));
        } else {
            String host = arguments[1];
            int port = Integer.parseInt(arguments[2]), requests = Integer.parseInt(arguments[3]);
            askAtOnce(host, port, requests);
            askInTurn(host, port, requests);
            System.out.println("all answers are right");
            System.exit(0);
        }
    }

    static void serve(int port) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(port), 100);
        server.createContext("/", exchange -> {
            exchange.getRequestBody().readAllBytes();
            byte[] body = new byte[exchange.getRequestURI().getPath().equals("/big") ? BIG : SMALL];
            exchange.sendResponseHeaders(200, body.length);
            try (var out = exchange.getResponseBody()) {
                out.write(body);
            }
        });
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.start();
    }

    // By a selector, on several connections.
    static void askAtOnce(String host, int port, int requests) throws Exception {
        var client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        var room = new Semaphore(20);
        var answers = new ArrayList<CompletableFuture<Integer>>();
        for (int n = 0; n < requests; n++) {
            room.acquire();
            boolean isBig = n % 500 == 499;
            var request = HttpRequest.newBuilder(URI.create("http://" + host + ":" + port + (isBig ? "/big" : "/"))).build();
            int expected = isBig ? BIG : SMALL;
            answers.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()).thenApply(response -> {
                room.release();
                return response.body().length - expected;
            }));
        }
        for (var answer : answers) {
            if (answer.get() != 0) throw new Error("an answer is wrong");
        }
    }

    // By calls that wait; then another thread closes the socket of one that does.
    static void askInTurn(String host, int port, int requests) throws Exception {
        Socket socket = new Socket(host, port);
        var in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
        for (int n = 0; n < requests; n++) {
            socket.getOutputStream().write("GET / HTTP/1.1\r\nHost: host\r\n\r\n".getBytes());
            String line;
            do {
                line = in.readLine();
            } while (!line.isEmpty());
            in.readFully(new byte[SMALL]);
        }
        var closed = new CompletableFuture<Boolean>();
        Thread reader = new Thread(() -> {
            try {
                closed.complete(in.read() == 0);
            } catch (SocketException e) {
                closed.complete(true);
            } catch (IOException e) {
                closed.complete(false);
            }
        });
        reader.start();
        Thread.sleep(200);
        socket.close();
        if (!closed.get(10, java.util.concurrent.TimeUnit.SECONDS)) throw new Error("a close is not seen as one");
    }
}
