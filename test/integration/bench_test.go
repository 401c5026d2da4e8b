package integration

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandboxd/sandboxd/test/integration/lab"
)

// BenchmarkTiers measures, in random turns within one run, the time from a
// start to tools/list and the median of a call, for server-everything bare (the
// same node and the same files, in an empty network namespace) and through
// `sandboxd run` in both container tiers; and beside them a first call that has
// its sandbox from a pool. What counts are the ratios, which are medians of
// each round's: what else the machine does slows the ways of a round alike.
func BenchmarkTiers(b *testing.B) {
	e := startEngine(b)
	buildImage(b, "npm:"+everything)
	bare := extractImage(b, "npm:"+everything)
	ways := []string{"bare", "container", "gvisor", "pool"}
	command := func(ctx context.Context, way string) *exec.Cmd {
		if way == "bare" {
			return exec.CommandContext(ctx, "unshare", append([]string{"-n", "--"}, bare...)...)
		}
		cmd := lab.UserCommand(ctx, lab.UserDir(b), program, "run", "--isolation", way, "--", "npx", "-y", everything)
		cmd.Env = append(cmd.Env, e.env()...)
		return cmd
	}
	pools := startPools(b, e)
	start, call := map[string][]float64{}, map[string][]float64{}
	const rounds = 9
	for range b.N {
		for round := range rounds + 1 {
			took, called := map[string]float64{}, map[string]float64{}
			for _, i := range rand.Perm(len(ways)) {
				way := ways[i]
				pools.full(b)
				if way == "pool" {
					took[way] = pools.first(b)
					continue
				}
				took[way], called[way] = measure(b, func(ctx context.Context) *exec.Cmd { return command(ctx, way) })
			}
			if round == 0 {
				continue // the image's hand-over, and cold files
			}
			for _, way := range ways {
				start[way] = append(start[way], took[way])
				start[way+"/"] = append(start[way+"/"], took[way]/took["bare"])
				call[way] = append(call[way], called[way])
				call[way+"/"] = append(call[way+"/"], called[way]/called["bare"])
			}
		}
	}
	for _, way := range ways {
		b.ReportMetric(median(start[way]), way+"-start-ms")
		b.ReportMetric(median(start[way+"/"]), way+"-start-ratio")
		if way != "pool" {
			b.ReportMetric(median(call[way]), way+"-call-ms")
			b.ReportMetric(median(call[way+"/"]), way+"-call-ratio")
		}
	}
}

// pools are two tenants' servers with sandboxes that wait.
type pools struct {
	e       *engine
	tenants []*serving
}

func startPools(b *testing.B, e *engine) *pools {
	b.Helper()
	l := lab.New(b)
	p := &pools{e: e}
	for _, tenant := range []string{"a", "b"} {
		file := l.WriteFile(tenant+".yaml", fmt.Sprintf(`
tenant: %s
mcp_servers:
- {id: warm, command: npx, args: [-y, %q], isolation: container, sharing: call, required: true, warm: 2}
`, tenant, everything))
		p.tenants = append(p.tenants, startServe(b, l, e.env(), "--config", file))
	}
	return p
}

// full waits until each tenant has its shared sandbox and two that wait, and
// those have listed their tools.
func (p *pools) full(b *testing.B) {
	b.Helper()
	until(b, "the pools are full", time.Minute, func() bool { return p.e.started()-p.e.ended() == 3*len(p.tenants) })
	time.Sleep(2 * time.Second)
}

// first is how long a first call takes, in milliseconds, while another tenant
// makes one too; and again while what refills the pools after that is under
// way. It is the mean of the two.
func (p *pools) first(b *testing.B) float64 {
	b.Helper()
	var own time.Duration
	for range 2 {
		var wg sync.WaitGroup
		for i, s := range p.tenants {
			wg.Go(func() {
				began := time.Now()
				if status, r := s.call(b, "warm", "echo", `{"message":"x"}`); status != http.StatusOK {
					b.Errorf("%d %+v", status, r)
				}
				if i == 0 {
					own += time.Since(began)
				}
			})
		}
		wg.Wait()
		time.Sleep(300 * time.Millisecond) // the refill begins after 250
	}
	return ms(own) / 2
}

// measure starts a server, lists its tools and calls one; in milliseconds.
func measure(b *testing.B, command func(context.Context) *exec.Cmd) (start, call float64) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	began := time.Now()
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: command(ctx)}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer session.Close()
	if _, err := session.ListTools(ctx, nil); err != nil {
		b.Fatal(err)
	}
	start = ms(time.Since(began))
	var calls []float64
	for range 200 {
		began := time.Now()
		if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"message": "x"}}); err != nil {
			b.Fatal(err)
		}
		calls = append(calls, ms(time.Since(began)))
	}
	return start, median(calls)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// extractImage unpacks an image's layers, so that the same files can run bare,
// and returns the command.
func extractImage(t testing.TB, ref string) []string {
	t.Helper()
	out, err := lab.UserCommandOutput(program, []string{"SANDBOXD_CACHE=" + cache}, "image", "build", "--json", ref)
	if err != nil {
		t.Fatalf("image build: %v\n%s", err, out)
	}
	var img struct{ Digest string }
	if err := json.Unmarshal(out, &img); err != nil {
		t.Fatal(err)
	}
	blob := func(digest string) string {
		return filepath.Join(cache, "images", "oci", "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
	}
	var manifest v1.Manifest
	var config v1.Image
	readJSONFile(t, blob(img.Digest), &manifest)
	readJSONFile(t, blob(manifest.Config.Digest.String()), &config)
	dir := t.TempDir()
	for _, l := range manifest.Layers[1:] { // the host's own C library serves
		untar(t, blob(l.Digest.String()), dir)
	}
	var command []string
	for _, a := range config.Config.Entrypoint {
		if strings.HasPrefix(a, "/") {
			a = filepath.Join(dir, a)
		}
		command = append(command, a)
	}
	return command
}

func readJSONFile(t testing.TB, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

func untar(t testing.TB, file, dir string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			err = unpack(root, h, tr)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func unpack(root *os.Root, h *tar.Header, r io.Reader) error {
	name := filepath.Clean(h.Name)
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY, h.FileInfo().Mode().Perm()|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
