package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

var buildClient = sync.OnceValues(func() (string, error) { return buildModule("client", "./testdata/client") })

// clientModule is an ordinary program, compiled as `sandboxd build` does.
func clientModule(t testing.TB) string {
	t.Helper()
	path, err := buildClient()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

const clientPolicy = `
egress:
  mode: allowlist
  allow:
    - host: allowed.example.com
    - host: raw.example.com
      ports: [2222]
      protocol: tcp
  allow_local_endpoint: ["localhost:5432"]
`

// runClient runs the program in a tier and returns what it printed.
func runClient(t testing.TB, l *lab.Lab, tier string, args ...string) (results []string, cpu time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := l.Command(ctx, program, append([]string{
		"run", "--isolation", tier, "--resolver", "127.0.0.1:53", "--policy", l.WriteFile("client.yaml", clientPolicy),
		"--mount", l.WriteFile("ca.pem", l.CA.PEM) + ":/lab/ca.pem", "--env", "SSL_CERT_FILE=/lab/ca.pem", "--", clientModule(t),
	}, args...)...)
	cmd.Env = append(cmd.Env, "SANDBOXD_CACHE="+cache, "SANDBOXD_ENGINE="+filepath.Join(l.Home, "none.sock"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if args[0] == "idle" {
		defer time.AfterFunc(idleFor, func() { _ = in.Close() }).Stop()
	}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, &stderr)
	}
	return clientResults(t, out), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

func clientResults(t testing.TB, out []byte) (results []string) {
	t.Helper()
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var m struct{ Params string }
		if err := d.Decode(&m); err != nil {
			t.Fatalf("%v: %q", err, out)
		}
		results = append(results, m.Params)
	}
	return results
}

// TestBuiltProgramUsesTheNetwork: dials, look-ups, HTTP, deadlines, half closed
// connections, listeners, signals and time zones of a program that knows
// nothing of WASM work, and what policy does not let out fails at once.
func TestBuiltProgramUsesTheNetwork(t *testing.T) {
	for _, tier := range wasmTiers {
		t.Run(tier, func(t *testing.T) {
			l, d := newLabHosts(t)
			l.Echo("127.0.0.1:5432", "")
			l.Echo("127.0.0.1:5433", "")
			out, _ := runClient(t, l, tier, "check")
			if len(out) < 17 {
				t.Errorf("it looked at %d things", len(out))
			}
			for _, line := range out {
				if !strings.HasSuffix(line, ": ok") {
					t.Error(line)
				}
			}
			for _, q := range d.Queries() {
				if !slices.Contains([]string{"allowed.example.com", "raw.example.com"}, q) {
					t.Errorf("a query left for %q, which policy refuses", q)
				}
			}
		})
	}
}

const idleFor = 4 * time.Second

// TestWaitingForASignalCostsNothing: Go's own os/signal spins on wasip1, at a
// whole processor for as long as the program runs.
func TestWaitingForASignalCostsNothing(t *testing.T) {
	l, _ := newLabHosts(t)
	runClient(t, l, "wasm-inprocess", "get", "https://allowed.example.com/") // compiles the module
	if _, cpu := runClient(t, l, "wasm-inprocess", "idle"); cpu > idleFor*3/4 {
		t.Errorf("idling for %s took %s of a processor", idleFor, cpu)
	}
}

// BenchmarkDownload compares 5 MiB over HTTPS in a guest with the same program
// run natively and without a guard.
func BenchmarkDownload(b *testing.B) {
	native := filepath.Join(filepath.Dir(program), "client")
	build := exec.Command("go", "build", "-o", native, "./testdata/client")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	l := lab.New(b)
	l.DNS(labZone)
	body := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	l.HTTPS(lab.AllowedV4+":443", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }), "allowed.example.com")
	const url = "https://allowed.example.com/"
	runClient(b, l, "wasm", "get", url) // compiles the module
	var times [2][]float64
	for b.Loop() {
		for range 5 {
			cmd := l.Command(b.Context(), native, "get", url, lab.AllowedV4+":443")
			cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+l.WriteFile("ca.pem", l.CA.PEM))
			out, err := cmd.Output()
			if err != nil {
				b.Fatal(err)
			}
			times[0] = append(times[0], downloadTimes(b, clientResults(b, out), len(body))...)
			guest, _ := runClient(b, l, "wasm", "get", url)
			times[1] = append(times[1], downloadTimes(b, guest, len(body))...)
		}
	}
	for i := range times {
		slices.Sort(times[i])
	}
	bare, guest := times[0][len(times[0])/2], times[1][len(times[1])/2]
	b.ReportMetric(5/bare, "native-MiB/s")
	b.ReportMetric(5/guest, "guest-MiB/s")
	b.ReportMetric(bare/guest, "of-native")
}

// downloadTimes reads what the program says of its downloads, and takes the
// one over the connection that was open already.
func downloadTimes(b *testing.B, out []string, size int) []float64 {
	b.Helper()
	var seconds []float64
	for _, line := range out {
		var proto string
		var n int
		var s float64
		if _, err := fmt.Sscan(line, &proto, &n, &s); err != nil || n != size {
			b.Fatalf("%q: %v", line, err)
		}
		seconds = append(seconds, s)
	}
	return seconds[len(seconds)-1:]
}
