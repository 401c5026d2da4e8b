package netguard

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// insideEnv marks the process that runs in namespaces of its own.
const insideEnv = "NETGUARD_TEST_INSIDE"

// TestAdversary runs unmodified clients against the gateway in a network
// namespace that leads nowhere else, with a DNS server that answers whatever
// hurts most. It re-executes itself there.
func TestAdversary(t *testing.T) {
	if os.Getenv(insideEnv) != "" {
		adversary(t)
		return
	}
	for _, tool := range []string{"ip", "mount", "curl", "node", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			skipOrFail(t, tool+" is not installed")
		}
	}
	if os.Geteuid() != 0 {
		skipOrFail(t, "needs root for namespaces")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestAdversary$", "-test.v", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), insideEnv+"=1", "NO_PROXY=*")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: TestAdversary/") {
		t.Error(err)
	}
}

// skipOrFail lets a laptop go without a tool, and CI not.
func skipOrFail(t *testing.T, why string) {
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// arena is the guest's world: its name server and its gateway.
type arena struct {
	*lab
	dns    *evilDNS
	cert   tls.Certificate
	caFile string
	secret atomic.Int32 // connections to what no guest may reach

	pinMu  sync.Mutex
	pinned map[netip.AddrPort]bool
}

func adversary(t *testing.T) {
	a := &arena{lab: &lab{t: t, servers: map[netip.AddrPort]string{}}, pinned: map[netip.AddrPort]bool{}}
	a.prepare(t)
	a.dns = startEvilDNS(t, "127.0.0.53:53")
	upstream, err := NewUpstream("127.0.0.53:53")
	if err != nil {
		t.Fatal(err)
	}
	a.start(Config{
		Mode: ModeAllowlist,
		Allow: []Rule{
			{Host: "api.example.com"},
			{Host: "b.example.com"},
			{Host: "*.example.org"},
			{Host: "plain.example.com", Ports: []Port{"80"}},
		},
		Limits: Limits{NamesPerWildcard: 40},
		PinTTL: 5 * time.Second,
	}, upstream)
	a.serveDNS(t)
	a.origins(t)
	t.Run("works", a.works)
	t.Run("names", a.names)
	t.Run("answers", a.answers)
	t.Run("rebinding", a.rebinding)
	t.Run("wire", a.wire)
	t.Run("redirect", a.redirect)
	t.Run("exfiltration", a.exfiltration)
	if n := a.secret.Load(); n != 0 {
		t.Errorf("%d connections reached what none may reach", n)
	}
	for _, to := range a.dialled {
		if !slices.Contains(addrs("8.8.8.8", "8.8.4.4", "2606:4700::1111"), to.Addr()) {
			t.Errorf("the guard dialled %v", to)
		}
	}
}

// prepare brings the namespace up, makes the gateway the only name server and
// places what must never be reached on private and link-local addresses.
func (a *arena) prepare(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "resolv.conf")
	writeFile(t, conf, "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n")
	tool(t, "ip", "link", "set", "lo", "up")
	tool(t, "mount", "--make-rprivate", "/")
	tool(t, "mount", "--bind", conf, "/etc/resolv.conf")
	cert, _ := testCert(t, "api.example.com", "b.example.com", "plain.example.com", "*.example.org", "evil.example.net")
	a.cert = cert
	a.caFile = filepath.Join(dir, "ca.pem")
	writeFile(t, a.caFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})))
	for _, at := range []string{"127.0.0.1:443", "10.9.9.9:443", "169.254.169.254:80", "169.254.169.254:443"} {
		addr := netip.MustParseAddrPort(at)
		if !addr.Addr().IsLoopback() {
			tool(t, "ip", "addr", "replace", addr.Addr().String()+"/32", "dev", "lo")
		}
		acceptAll(t, listenAt(t, at), func(net.Conn) { a.secret.Add(1) })
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func tool(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func listenAt(t testing.TB, at string) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(context.Background(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// serveDNS answers the guests, over UDP. Pinning an endpoint makes it exist:
// its address appears in the namespace, with the gateway behind it. What is
// not pinned has no route.
func (a *arena) serveDNS(t *testing.T) {
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(context.Background(), "udp", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			buf := make([]byte, 2048)
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			wg.Go(func() {
				if out, err := a.egress.Resolve(context.Background(), buf[:n], a.pin); err == nil {
					_, _ = pc.WriteTo(out, from)
				}
			})
		}
	})
	t.Cleanup(func() { _ = pc.Close(); wg.Wait() })
}

func (a *arena) pin(endpoints []netip.AddrPort, _ time.Duration) error {
	a.pinMu.Lock()
	defer a.pinMu.Unlock()
	for _, ep := range endpoints {
		if a.pinned[ep] {
			continue
		}
		args := []string{"addr", "replace", netip.PrefixFrom(ep.Addr(), ep.Addr().BitLen()).String(), "dev", "lo"}
		if ep.Addr().Is6() {
			args = append(args, "nodad")
		}
		tool(a.t, "ip", args...)
		a.routed(ep.Addr())
		a.guestsAt(listenAt(a.t, ep.String()), ep.String())
		a.pinned[ep] = true
	}
	return nil
}

// routed waits for the route to an address that was just added: the kernel
// installs an IPv6 one from a work queue.
func (a *arena) routed(addr netip.Addr) {
	a.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		out, err := exec.CommandContext(context.Background(), "ip", "route", "get", addr.String()).Output()
		if err == nil && strings.HasPrefix(string(out), "local ") {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("no route to %s", addr)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// origins are the real servers: two names on one shared address.
func (a *arena) origins(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
			return
		}
		fmt.Fprintf(w, "hello from %s over %s", r.Host, r.Proto)
	})
	srv := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{a.cert}, NextProtos: []string{"h2", "http/1.1"}},
	}
	secure, plain := listen(t), listen(t)
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.ServeTLS(secure, "", "") })
	wg.Go(func() { _ = srv.Serve(plain) })
	t.Cleanup(func() { _ = srv.Close(); wg.Wait() })
	for _, at := range []string{"8.8.8.8:443", "8.8.4.4:443", "[2606:4700::1111]:443"} {
		a.place(at, secure.Addr().String())
	}
	a.place("8.8.8.8:80", plain.Addr().String())
	a.dns.set("api.example.com", "8.8.8.8")
	a.dns.set("b.example.com", "8.8.4.4")
	a.dns.set("six.example.org", "2606:4700::1111")
	a.dns.set("plain.example.com", "8.8.8.8")
	a.dns.set("evil.example.net", "8.8.8.8")
}

// get runs one unmodified client and returns its output.
func (a *arena) get(client, url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	const (
		nodeFetch = `fetch(process.argv[1]).then(r=>r.text()).then(t=>console.log(t)).catch(e=>{console.error(e.cause||e);process.exit(1)})`
		nodeHTTP2 = `const u=new URL(process.argv[1]);const s=require('http2').connect(u.origin);s.on('error',e=>{console.error(e);process.exit(1)});const r=s.request({':path':u.pathname});r.setEncoding('utf8');let b='';r.on('data',d=>b+=d);r.on('end',()=>{console.log(b);s.close()});r.on('error',e=>{console.error(e);process.exit(1)});r.end()`
		python    = `import sys,ssl,urllib.request as u;print(u.urlopen(sys.argv[1],context=ssl.create_default_context(cafile=sys.argv[2]),timeout=10).read().decode())`
	)
	var cmd *exec.Cmd
	switch client {
	case "go":
		return a.goGet(ctx, url)
	case "curl":
		cmd = exec.CommandContext(ctx, "curl", "-sSL", "--max-time", "10", "--cacert", a.caFile, url)
	case "curl h2c":
		cmd = exec.CommandContext(ctx, "curl", "-sS", "--max-time", "10", "--http2-prior-knowledge", url)
	case "curl upgrade":
		cmd = exec.CommandContext(ctx, "curl", "-sS", "--max-time", "10", "--http2", url)
	case "curl fronting":
		cmd = exec.CommandContext(ctx, "curl", "-sS", "--max-time", "10", "-H", "Host: evil.example.net", url)
	case "curl shared address":
		cmd = exec.CommandContext(ctx, "curl", "-sS", "--max-time", "10", "--cacert", a.caFile, "--resolve", "*:443:8.8.8.8", url)
	case "node fetch":
		cmd = exec.CommandContext(ctx, "node", "-e", nodeFetch, url)
	case "node http2":
		cmd = exec.CommandContext(ctx, "node", "-e", nodeHTTP2, url)
	case "python":
		cmd = exec.CommandContext(ctx, "python3", "-c", python, url, a.caFile)
	default:
		return "", errors.New("unknown client")
	}
	cmd.Env = append(os.Environ(), "NODE_EXTRA_CA_CERTS="+a.caFile)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (a *arena) goGet(ctx context.Context, url string) (string, error) {
	_, pool := a.cert, pemPool(a.t, a.caFile)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

var clients = []string{"go", "curl", "node fetch", "node http2", "python"}

func (a *arena) works(t *testing.T) {
	for _, c := range clients {
		for _, host := range []string{"api.example.com", "six.example.org"} {
			if out, err := a.get(c, "https://"+host+"/"); err != nil || !strings.Contains(out, "hello from "+host) {
				t.Errorf("%s %s: %q, %v", c, host, out, err)
			}
		}
	}
	if out, err := a.get("curl", "http://plain.example.com/"); err != nil || !strings.Contains(out, "hello from plain") {
		t.Errorf("plain: %q, %v", out, err)
	}
}

// refused has a client fail, fast, and never reach anything.
func (a *arena) refused(t *testing.T, client, url string) {
	t.Helper()
	began := time.Now()
	out, err := a.get(client, url)
	if err == nil || strings.Contains(out, "hello from") {
		t.Errorf("%s %s: %q, %v", client, url, out, err)
	}
	if d := time.Since(began); d > 8*time.Second {
		t.Errorf("%s %s: failed only after %v", client, url, d)
	}
}

// A name outside the policy fails for every client, and no query leaves.
func (a *arena) names(t *testing.T) {
	before := a.dns.count("evil.example.net")
	for _, c := range clients {
		a.refused(t, c, "https://evil.example.net/")
	}
	a.refused(t, "curl", "https://1.1.1.1/")
	if n := a.dns.count("evil.example.net"); n != before {
		t.Errorf("%d queries left", n-before)
	}
}

// answers: one bad address, or a chain without end, refuses the whole name.
func (a *arena) answers(t *testing.T) {
	for name, ips := range map[string][]string{
		"private.example.org":     {"10.9.9.9"},
		"loopback.example.org":    {"127.0.0.1"},
		"metadata.example.org":    {"169.254.169.254"},
		"mixed.example.org":       {"8.8.8.8", "10.9.9.9"},
		"mixed6.example.org":      {"8.8.8.8", "::1"},
		"mapped.example.org":      {"::ffff:10.9.9.9"},
		"nat64.example.org":       {"64:ff9b::a09:909"},
		"sixtofour.example.org":   {"2002:a09:909::1"},
		"unspecified.example.org": {"0.0.0.0"},
	} {
		a.dns.set(name, ips...)
		a.refused(t, "curl", "https://"+name+"/")
		a.because(t, name, ReasonAddress)
	}
	for name, links := range map[string]int{"short.example.org": MaxChain, "long.example.org": MaxChain + 1} {
		a.dns.chain(name, links, "8.8.8.8")
		out, err := a.get("curl", "https://"+name+"/")
		if ok := err == nil && strings.Contains(out, "hello from"); ok != (links <= MaxChain) {
			t.Errorf("%d aliases: %q, %v", links, out, err)
		}
	}
	a.because(t, "long.example.org", ReasonChain)
	a.dns.chain("loop.example.org", -1, "")
	a.refused(t, "curl", "https://loop.example.org/")
	a.because(t, "loop.example.org", ReasonChain)
	many := make([]string, MaxAnswers+1)
	for i := range many {
		many[i] = fmt.Sprintf("8.8.8.%d", i+1)
	}
	a.dns.set("many.example.org", many...)
	a.refused(t, "curl", "https://many.example.org/")
	a.because(t, "many.example.org", ReasonAnswers)
}

// because checks the reason of the newest decision about host.
func (a *arena) because(t *testing.T, host string, want Reason) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := len(a.records) - 1; i >= 0; i-- {
		if r := a.records[i]; r.Event == EventDecision && r.Host == host {
			if r.Allow || r.Reason != want {
				t.Errorf("%s: %+v", host, r)
			}
			return
		}
	}
	t.Errorf("%s: no decision", host)
}

// rebinding: a name that was good turns bad, or alternates with each query.
func (a *arena) rebinding(t *testing.T) {
	a.dns.set("turn.example.org", "8.8.8.8")
	if out, err := a.get("python", "https://turn.example.org/"); err != nil {
		t.Fatalf("%q, %v", out, err)
	}
	a.dns.set("turn.example.org", "127.0.0.1")
	for _, c := range clients {
		a.refused(t, c, "https://turn.example.org/")
		a.because(t, "turn.example.org", ReasonAddress)
	}
	a.dns.alternate("flip.example.org", []string{"8.8.8.8"}, []string{"10.9.9.9"})
	for range 6 {
		_, _ = a.get("curl", "https://flip.example.org/") // either way; never the private address
	}
}

// wire: the right address with the wrong name on it.
func (a *arena) wire(t *testing.T) {
	if _, err := a.get("curl", "https://api.example.com/"); err != nil {
		t.Fatal(err)
	}
	a.refused(t, "curl shared address", "https://evil.example.net/")
	if d := a.lastDecision(); d.Reason != ReasonNotAllowed || d.Host != "evil.example.net" {
		t.Errorf("decision %+v", d)
	}
	_, _ = a.get("curl", "https://b.example.com/") // pinned, to another address
	a.refused(t, "curl shared address", "https://b.example.com/")
	a.because(t, "b.example.com", ReasonPinMismatch)
	a.refused(t, "curl fronting", "http://plain.example.com/")
	a.because(t, "evil.example.net", ReasonNotAllowed)
	a.refused(t, "curl h2c", "http://plain.example.com/")
	if d := a.lastDecision(); d.Reason != ReasonHTTPUpgrade {
		t.Errorf("decision %+v", d)
	}
	a.refused(t, "curl upgrade", "http://plain.example.com/")
	if d := a.lastDecision(); d.Reason != ReasonHTTPUpgrade {
		t.Errorf("decision %+v", d)
	}
}

// redirect: a client that follows goes through the gateway again.
func (a *arena) redirect(t *testing.T) {
	for _, to := range []string{"https://evil.example.net/", "https://private.example.org/"} {
		for _, c := range []string{"curl", "go", "node fetch", "python"} {
			a.refused(t, c, "https://api.example.com/redirect?to="+to)
		}
	}
}

// exfiltration: distinct names below a wildcard run out.
func (a *arena) exfiltration(t *testing.T) {
	for i := range 60 {
		name := fmt.Sprintf("chunk%d.example.org", i)
		a.dns.set(name, "8.8.8.8")
		_, _ = net.DefaultResolver.LookupHost(context.Background(), name)
	}
	left := 0
	for i := range 60 {
		if a.dns.count(fmt.Sprintf("chunk%d.example.org", i)) > 0 {
			left++
		}
	}
	if left == 0 || left > 40 {
		t.Errorf("%d of 60 names left", left)
	}
}
