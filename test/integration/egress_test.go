package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/netguard"
	"github.com/sandboxd/sandboxd/test/integration/lab"
)

const labPolicy = `
egress:
  mode: allowlist
  allow:
    - host: allowed.example.com
    - host: six.example.com
    - host: raw.example.com
      ports: [2222]
      protocol: tcp
    - host: private.example.com
    - host: mixed.example.com
`

var labZone = map[string][]string{
	"allowed.example.com": {lab.AllowedV4},
	"six.example.com":     {lab.AllowedV6},
	"raw.example.com":     {lab.RawV4},
	"other.example.com":   {lab.OtherV4},
	"private.example.com": {"10.1.2.3"},
	"mixed.example.com":   {lab.AllowedV4, "127.0.0.1"},
}

// attempt is one thing that the probe tries, and what must come of it.
type attempt struct {
	way, target string
	want        string // a part of the answer; empty means refused
	reason      netguard.Reason
}

// refusedWithin is far above what a refusal takes and far under any time-out
// that a client would wait for.
const refusedWithin = 1500 * time.Millisecond

func labAttempts() []attempt {
	var out []attempt
	for _, way := range []string{"fetch", "https", "http2", "curl"} {
		out = append(out,
			attempt{way, "https://allowed.example.com/", "the allowed host", ""},
			attempt{way, "https://six.example.com/", "the allowed host", ""},
			attempt{way, "https://other.example.com/", "", netguard.ReasonNotAllowed},
			attempt{way, "https://private.example.com/", "", netguard.ReasonAddress},
			attempt{way, "https://mixed.example.com/", "", netguard.ReasonAddress},
			attempt{way, "https://" + lab.OtherV4 + "/", "", ""},
			attempt{way, "https://169.254.169.254/", "", ""},
			attempt{way, "https://[" + lab.AllowedV6 + "]:8443/", "", ""},
		)
	}
	return append(out,
		attempt{"connect", "raw.example.com:2222", "raw hello", ""},
		attempt{"connect", "raw.example.com:2223", "", ""},
		attempt{"connect", lab.OtherV4 + ":2222", "", ""},
		attempt{"connect", "169.254.169.254:80", "", ""},
		attempt{"connect", "[fd00:ec2::254]:80", "", ""},
		attempt{"udp", lab.OtherV4 + ":4433", "", ""},
		attempt{"udp", "[" + lab.AllowedV6 + "]:4433", "", ""},
		attempt{"lookup", "allowed.example.com", lab.AllowedV4, ""},
		attempt{"lookup", "other.example.com", "", netguard.ReasonNotAllowed},
	)
}

// newLabHosts makes the small internet that the egress tests use.
func newLabHosts(t *testing.T) (*lab.Lab, *lab.DNS) {
	l := lab.New(t)
	d := l.DNS(labZone)
	hello := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, text) })
	}
	l.HTTPS(lab.AllowedV4+":443", hello("the allowed host"), "allowed.example.com")
	l.HTTPS("["+lab.AllowedV6+"]:443", hello("the allowed host"), "six.example.com")
	l.HTTPS(lab.OtherV4+":443", hello("the other host"), "other.example.com")
	l.Echo(lab.RawV4+":2222", "raw hello\n")
	l.Echo(lab.RawV4+":2223", "never to be seen\n")
	l.Echo(lab.OtherV4+":2222", "never to be seen\n")
	return l, d
}

type probeResult struct {
	Way, Target, Got, Error string
	MS                      float64
}

// probe runs the attempts inside a real server's image and returns what came
// of each, with the records that the guard wrote.
func probe(t *testing.T, e *engine, l *lab.Lab, tier, policy string, attempts []attempt) ([]probeResult, []netguard.Record, string) {
	t.Helper()
	script, err := os.ReadFile("testdata/probe.js")
	if err != nil {
		t.Fatal(err)
	}
	targets := [][2]string{}
	for _, a := range attempts {
		targets = append(targets, [2]string{a.way, a.target})
	}
	list, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	records := filepath.Join(l.Home, "records-"+tier+".jsonl")
	args := []string{
		"run", "--isolation", tier, "--with", "curl", "--resolver", "127.0.0.1:53", "--records", records,
		"--mount", l.WriteFile("probe-"+tier+".js", string(script)) + ":/lab/probe.js",
		"--mount", l.WriteFile("ca-"+tier+".pem", l.CA.PEM) + ":/lab/ca.pem",
		"--env", "NODE_OPTIONS=--require=/lab/probe.js", "--env", "NODE_EXTRA_CA_CERTS=/lab/ca.pem",
		"--env", "LAB_TARGETS=" + string(list),
	}
	if policy != "" {
		args = append(args, "--policy", l.WriteFile("policy-"+tier+".yaml", policy))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := l.Command(ctx, program, append(args, "--", "npx", "-y", "@modelcontextprotocol/server-everything")...)
	cmd.Env = append(cmd.Env, e.env()...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stderr := &syncBuffer{}
	cmd.Stderr = stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("run: %v\n%s\n%s", err, stderr, e.log)
	}
	var results []probeResult
	for _, line := range strings.Split(stderr.String(), "\n") {
		if j, ok := strings.CutPrefix(line, "PROBE "); ok {
			var r probeResult
			if err := json.Unmarshal([]byte(j), &r); err != nil {
				t.Fatal(err)
			}
			results = append(results, r)
		}
	}
	if len(results) != len(attempts) {
		t.Fatalf("%d results for %d attempts\n%s", len(results), len(attempts), stderr)
	}
	return results, readRecords(t, records), stderr.String()
}

func readRecords(t testing.TB, path string) []netguard.Record {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []netguard.Record
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var r netguard.Record
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// TestEgress: from unmodified clients inside the container what policy names
// works, and all else is refused at once, with a record and its reason.
func TestEgress(t *testing.T) {
	e := startEngine(t)
	buildImage(t, "--with", "curl", "npm:@modelcontextprotocol/server-everything")
	for _, tier := range containerTiers {
		t.Run(tier, func(t *testing.T) {
			l, d := newLabHosts(t)
			attempts := labAttempts()
			results, records, stderr := probe(t, e, l, tier, labPolicy, attempts)
			for i, a := range attempts {
				checkAttempt(t, a, results[i], records)
			}
			for _, q := range d.Queries() {
				if q == "other.example.com" {
					t.Error("a query left for a name that policy refuses")
				}
			}
			if t.Failed() {
				t.Logf("stderr:\n%s", stderr)
			}
		})
	}
}

func checkAttempt(t *testing.T, a attempt, r probeResult, records []netguard.Record) {
	t.Helper()
	what := a.way + " " + a.target
	if a.want != "" {
		if !strings.Contains(r.Got, a.want) {
			t.Errorf("%s: got %q, error %q, want %q", what, r.Got, r.Error, a.want)
		}
		return
	}
	if r.Got != "" || r.Error == "" {
		t.Errorf("%s: reached %q", what, r.Got)
	}
	if strings.Contains(r.Error, "TIMEOUT") || r.MS > float64(refusedWithin.Milliseconds()) {
		t.Errorf("%s: refused after %.0f ms as %q, want at once", what, r.MS, r.Error)
	}
	// A packet to an address that a look-up answered is recorded by that name.
	host := targetHost(a.target)
	names := []string{host}
	for name, addrs := range labZone {
		if slices.Contains(addrs, host) {
			names = append(names, name)
		}
	}
	for _, rec := range records {
		if rec.Event == netguard.EventDecision && !rec.Allow && slices.Contains(names, rec.Host) {
			if rec.Reason == "" || a.reason != "" && rec.Reason != a.reason {
				t.Errorf("%s: recorded with reason %q, want %q", what, rec.Reason, a.reason)
			}
			return
		}
	}
	t.Errorf("%s: no decision record names %q", what, host)
}

func targetHost(target string) string {
	s := strings.TrimPrefix(target, "https://")
	s, _, _ = strings.Cut(s, "/")
	if rest, ok := strings.CutPrefix(s, "["); ok {
		host, _, _ := strings.Cut(rest, "]")
		return host
	}
	host, _, _ := strings.Cut(s, ":")
	return host
}

// TestNoPolicyReachesNothing: without a policy there is no network at all.
func TestNoPolicyReachesNothing(t *testing.T) {
	e := startEngine(t)
	buildImage(t, "--with", "curl", "npm:@modelcontextprotocol/server-everything")
	for _, tier := range containerTiers {
		t.Run(tier, func(t *testing.T) {
			l, d := newLabHosts(t)
			attempts := labAttempts()
			results, _, _ := probe(t, e, l, tier, "", attempts)
			for i, a := range attempts {
				if results[i].Got != "" {
					t.Errorf("%s %s: reached %q", a.way, a.target, results[i].Got)
				}
			}
			if q := d.Queries(); len(q) > 0 {
				t.Errorf("queries left: %v", q)
			}
		})
	}
}

// TestGVisorKernel: the gvisor tier is never silently runc.
func TestGVisorKernel(t *testing.T) {
	e := startEngine(t)
	buildImage(t, "--with", "curl", "npm:@modelcontextprotocol/server-everything")
	var uts syscall.Utsname
	if err := syscall.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	host := utsString(uts.Release[:])
	l := lab.New(t)
	release := func(tier string) string {
		results, _, _ := probe(t, e, l, tier, "", []attempt{{way: "uname"}})
		return results[0].Got
	}
	if got := release("container"); !strings.Contains(got, host) {
		t.Errorf("container reports kernel %q, not the host's %q: the probe proves nothing", got, host)
	}
	if got := release("gvisor"); strings.Contains(got, host) || !strings.HasPrefix(got, "4.") {
		t.Errorf("gvisor reports kernel %q, want the sentry's own (4.x)", got)
	}
}

func utsString(f []int8) string {
	var b strings.Builder
	for _, c := range f {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}
