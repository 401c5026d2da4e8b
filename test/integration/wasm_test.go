package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/test/integration/lab"
)

var wasmTiers = []string{"wasm", "wasm-inprocess"}

var buildFetch = sync.OnceValues(func() (string, error) { return buildModule("fetch", "../../images/wasm/fetch") })

// buildModule compiles a folder as `sandboxd build` does for everyone. What did
// not change is compiled once for all runs.
func buildModule(name, target string) (string, error) {
	path := filepath.Join(filepath.Dir(program), name+".wasm")
	cmd := exec.Command(program, "build", "-o", path, target)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
}

// fetchModule is the shipped example server, built as the Makefile does.
func fetchModule(t *testing.T) string {
	t.Helper()
	path, err := buildFetch()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// wasmFetch is one URL that the guest's tool is asked to fetch.
type wasmFetch struct {
	url    string
	want   string // a part of the answer; empty means refused
	host   string // what the refusal's record names
	reason netguard.Reason
}

var wasmFetches = []wasmFetch{
	{url: "https://allowed.example.com/", want: "the allowed host"},
	{url: "https://ALLOWED.example.com/", want: "the allowed host"},
	{url: "https://six.example.com/", want: "the allowed host"},
	{url: "https://allowed.example.com/hop", want: "the allowed host"},
	{"https://other.example.com/", "", "other.example.com", netguard.ReasonNotAllowed},
	{"https://allowed.example.com.other.example.com/", "", "allowed.example.com.other.example.com", netguard.ReasonNotAllowed},
	{"https://allowed.example.com:8443/", "", "allowed.example.com", netguard.ReasonPort},
	{"https://private.example.com/", "", "private.example.com", netguard.ReasonAddress},
	{"https://mixed.example.com/", "", "mixed.example.com", netguard.ReasonAddress},
	{"https://" + lab.OtherV4 + "/", "", lab.OtherV4, netguard.ReasonLiteral},
	{"https://" + lab.AllowedV4 + "/", "", lab.AllowedV4, netguard.ReasonLiteral},
	{"https://[" + lab.AllowedV6 + "]/", "", lab.AllowedV6, netguard.ReasonLiteral},
	{"http://169.254.169.254/latest/meta-data/", "", "169.254.169.254", ""},
	{"http://[fd00:ec2::254]/", "", "fd00:ec2::254", ""},
	{"http://[::ffff:169.254.169.254]/", "", "", ""},
	{"http://127.0.0.1:53/", "", "127.0.0.1", ""},
	{"http://localhost/", "", "localhost", ""},
	{"http://2852039166/", "", "2852039166", netguard.ReasonHostNumeric},
	{"http://metadata.google.internal/", "", "metadata.google.internal", ""},
	{"https://allowed.example.com/to-other", "", "other.example.com", netguard.ReasonNotAllowed},
	{"https://allowed.example.com/to-metadata", "", "169.254.169.254", ""},
	{"https://allowed.example.com/to-private", "", "private.example.com", netguard.ReasonAddress},
}

const wasmPolicy = `
egress:
  mode: allowlist
  allow:
    - host: allowed.example.com
    - host: six.example.com
    - host: private.example.com
    - host: mixed.example.com
`

// newWASMLab makes the hosts: the allowed one leads elsewhere too. It counts
// what reaches hosts that must not be reached.
func newWASMLab(t *testing.T) (*lab.Lab, *lab.DNS, *atomic.Int64) {
	l := lab.New(t)
	d := l.DNS(labZone)
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "the allowed host") })
	for path, to := range map[string]string{
		"/hop": "https://six.example.com/", "/to-other": "https://other.example.com/",
		"/to-metadata": "http://169.254.169.254/latest/meta-data/", "/to-private": "https://private.example.com/",
	} {
		mux.Handle(path, http.RedirectHandler(to, http.StatusFound))
	}
	l.HTTPS(lab.AllowedV4+":443", mux, "allowed.example.com")
	l.HTTPS("["+lab.AllowedV6+"]:443", mux, "six.example.com")
	forbidden := &atomic.Int64{}
	l.HTTPS(lab.OtherV4+":443", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { forbidden.Add(1) }), "other.example.com")
	l.HTTPS(lab.AllowedV4+":8443", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { forbidden.Add(1) }), "allowed.example.com")
	return l, d, forbidden
}

// runFetch starts the guest through `sandboxd run` and fetches every URL.
func runFetch(t *testing.T, l *lab.Lab, tier, policy string) (got []string, took []time.Duration, records []netguard.Record) {
	t.Helper()
	path := filepath.Join(l.Home, "records.jsonl")
	args := []string{
		"run", "--isolation", tier, "--resolver", "127.0.0.1:53", "--records", path,
		"--mount", l.WriteFile("ca.pem", l.CA.PEM) + ":/lab/ca.pem", "--env", "SSL_CERT_FILE=/lab/ca.pem",
	}
	if policy != "" {
		args = append(args, "--policy", l.WriteFile("policy.yaml", policy))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := l.Command(ctx, program, append(args, "--", fetchModule(t))...)
	// No engine: this tier needs none.
	cmd.Env = append(cmd.Env, "SANDBOXD_CACHE="+cache, "SANDBOXD_ENGINE="+filepath.Join(l.Home, "none.sock"))
	stderr := &syncBuffer{}
	cmd.Stderr = stderr
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatalf("initialize: %v\n%s", err, stderr)
	}
	for _, f := range wasmFetches {
		start := time.Now()
		res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "fetch", Arguments: map[string]any{"url": f.url}})
		took = append(took, time.Since(start))
		if err != nil {
			t.Fatalf("%s: %v\n%s", f.url, err, stderr)
		}
		var out struct{ Text string }
		if b, err := json.Marshal(res.StructuredContent); err != nil {
			t.Fatal(err)
		} else if !res.IsError {
			if err := json.Unmarshal(b, &out); err != nil {
				t.Fatal(err)
			}
		}
		if res.IsError == (out.Text != "") {
			t.Errorf("%s: error %v and text %q", f.url, res.IsError, out.Text)
		}
		got = append(got, out.Text)
	}
	if err := session.Close(); err != nil {
		t.Errorf("the server's end: %v\n%s", err, stderr)
	}
	return got, took, readRecords(t, path)
}

// TestWASMEgress: from a guest's own HTTPS client what policy names works,
// and all else is refused at once, with a record and its reason.
func TestWASMEgress(t *testing.T) {
	for _, tier := range wasmTiers {
		t.Run(tier, func(t *testing.T) {
			l, d, forbidden := newWASMLab(t)
			got, took, records := runFetch(t, l, tier, wasmPolicy)
			for i, f := range wasmFetches {
				switch {
				case f.want != "" && !strings.Contains(got[i], f.want):
					t.Errorf("%s: got %q, want %q", f.url, got[i], f.want)
				case f.want == "" && got[i] != "":
					t.Errorf("%s: reached %q", f.url, got[i])
				case f.want == "" && took[i] > refusedWithin:
					t.Errorf("%s: refused after %s, want at once", f.url, took[i])
				}
				if f.want == "" && f.host != "" && !slices.ContainsFunc(records, func(r netguard.Record) bool {
					return r.Event == netguard.EventDecision && !r.Allow && r.Host == f.host && r.Reason != "" && (f.reason == "" || r.Reason == f.reason) &&
						(f.reason != netguard.ReasonNotAllowed || r.Via == netguard.ViaDNS) // a name is refused at its look-up already
				}) {
					t.Errorf("%s: no record of the refusal of %s for %q", f.url, f.host, f.reason)
				}
			}
			if n := forbidden.Load(); n > 0 {
				t.Errorf("%d requests reached hosts that no rule names", n)
			}
			for _, q := range d.Queries() {
				if !slices.Contains([]string{"allowed.example.com", "six.example.com", "private.example.com", "mixed.example.com"}, q) {
					t.Errorf("a query left for %q, which policy refuses", q)
				}
			}
			checkClosed(t, records)
			if t.Failed() {
				for _, r := range records {
					t.Logf("%+v", r)
				}
			}
		})
	}
}

// checkClosed: what was let through has both its lines, with bytes counted.
func checkClosed(t *testing.T, records []netguard.Record) {
	t.Helper()
	open := map[string]bool{}
	closed := 0
	for _, r := range records {
		switch {
		case r.Event == netguard.EventDecision && r.Allow:
			open[r.ID] = true
		case r.Event == netguard.EventClose:
			if !open[r.ID] || r.Up == 0 || r.Down == 0 {
				t.Errorf("a close line without a decision or without bytes: %+v", r)
			}
			closed++
		}
	}
	if closed == 0 {
		t.Error("no close line at all")
	}
}

// TestWASMNoPolicyReachesNothing: without a policy nothing goes out, not even
// a query.
func TestWASMNoPolicyReachesNothing(t *testing.T) {
	for _, tier := range wasmTiers {
		t.Run(tier, func(t *testing.T) {
			l, d, forbidden := newWASMLab(t)
			got, took, records := runFetch(t, l, tier, "")
			for i, f := range wasmFetches {
				if got[i] != "" {
					t.Errorf("%s: reached %q", f.url, got[i])
				}
				if took[i] > refusedWithin {
					t.Errorf("%s: refused after %s, want at once", f.url, took[i])
				}
			}
			if q := d.Queries(); len(q) > 0 || forbidden.Load() > 0 {
				t.Errorf("queries left: %v; requests arrived: %d", q, forbidden.Load())
			}
			for _, r := range records {
				if r.Allow || r.Event != netguard.EventDecision || r.Reason == "" {
					t.Errorf("let through or without a reason: %+v", r)
				}
			}
			if len(records) == 0 {
				t.Error("attempts leave no record")
			}
		})
	}
}
