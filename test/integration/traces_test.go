package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// traces is everything of one engine that the host holds beyond its images
// and, while it runs, beyond the engine and its containerd themselves: what
// kind of thing -> which ones.
type traces map[string][]string

func (tr traces) add(kind string, what ...string) {
	if len(what) > 0 {
		tr[kind] = append(tr[kind], what...)
	}
}

// String lists what there is, one kind a line.
func (tr traces) String() string {
	var b strings.Builder
	for kind, list := range tr {
		slices.Sort(list)
		fmt.Fprintf(&b, "%s: %.2000q\n", kind, list)
	}
	return b.String()
}

// traces takes stock. Everything of an engine bears its folder or its
// instance's name, or descends from something that does.
func (e *engine) traces() traces {
	e.t.Helper()
	tr := traces{}
	alive := e.running()
	tr.add("processes", e.processes(alive)...)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		e.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		// An empty namespace that gVisor mounts once goes with the engine.
		if e.ours(line) && (!alive || !strings.Contains(line, "/null-netns ")) {
			tr.add("mounts", strings.TrimSpace(line))
		}
	}
	for _, hierarchy := range e.glob("/sys/fs/cgroup/*/sandboxd-"+e.instance(), "/sys/fs/cgroup/sandboxd-"+e.instance()) {
		if !alive {
			tr.add("cgroups", hierarchy)
		}
		tr.add("cgroups", e.glob(hierarchy+"/*/cgroup.procs")...)
	}
	tr.add("named namespaces", e.glob("/run/netns/*"+e.instance()+"*")...)
	tr.add("links", e.glob("/sys/class/net/gw0")...)
	tr.add("files", e.files()...)
	if alive {
		e.containerdTraces(tr)
		tr.add("descriptors", e.namespaceDescriptors()...)
	} else {
		tr.add("sockets", e.glob(e.socket, filepath.Join(e.dir, "st/c/*.sock*"))...)
	}
	return tr
}

func (e *engine) instance() string { return filepath.Base(strings.ToLower(e.dir)) }

// keeper is the command line of the process that ends a dead engine's boxes.
func (e *engine) keeper() string { return "sandboxd-keeper " + e.instance() }

func (e *engine) ours(s string) bool {
	return strings.Contains(strings.ReplaceAll(s, "\x00", " "), e.keeper()) || strings.Contains(s, e.dir+"/") || strings.Contains(s, "sandboxd-"+e.instance()) || strings.Contains(s, "sb-"+e.instance()+"-")
}

func (e *engine) running() bool {
	select {
	case <-e.done:
		return false
	default:
		return true
	}
}

func (e *engine) glob(patterns ...string) []string {
	e.t.Helper()
	var out []string
	for _, p := range patterns {
		list, err := filepath.Glob(p)
		if err != nil {
			e.t.Fatal(err)
		}
		out = append(out, list...)
	}
	return out
}

// files are the folders, fifos and sockets that belong to sandboxes or to
// imports under way.
func (e *engine) files() []string {
	const perBox = "io.containerd.runtime.v2.task/*/*"
	var out []string
	for _, p := range e.glob(
		e.dir+"/st/boxes/boxes/*", e.dir+"/st/boxes/run/*/*", e.dir+"/st/boxes/*.new", e.dir+"/st/boxes/*/*.new",
		e.dir+"/st/c/s/*", e.dir+"/st/c/"+perBox, e.dir+"/root/containerd/"+perBox,
		e.dir+"/root/containerd/tmp/*", e.dir+"/root/containerd/tmpmounts/*",
		e.dir+"/st/c/io.containerd.mount-manager.v1.bolt/t/*",
		e.dir+"/root/containerd/io.containerd.content.v1.content/ingest/*",
	) {
		if filepath.Base(p) != "null-netns" {
			out = append(out, p)
		}
	}
	return out
}

// processes are those whose command line or cgroup is ours, and all that
// descend from them or from the engine.
func (e *engine) processes(alive bool) []string {
	type process struct {
		parent  int
		command string
		ours    bool
	}
	all := map[int]*process{}
	for _, dir := range e.glob("/proc/[0-9]*") {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // it has ended
		}
		line, _ := os.ReadFile(dir + "/cmdline")
		group, _ := os.ReadFile(dir + "/cgroup")
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			e.t.Fatal(err)
		}
		command := fmt.Sprintf("%s %s %.300s", fields[0], stat[:bytes.LastIndexByte(stat, ')')+1], bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
		all[pid] = &process{parent: parent, command: command, ours: e.ours(string(line)) || e.ours(string(group))}
	}
	self, daemon := 0, 0
	if alive {
		self, daemon = e.cmd.Process.Pid, e.containerdPID()
	}
	var out []string
	for pid, p := range all {
		ours := p.ours
		for a := p.parent; !ours && all[a] != nil; a = all[a].parent {
			ours = all[a].ours || alive && a == self
		}
		keeps := alive && p.parent == self && strings.Contains(p.command, e.keeper())
		if ours && pid != self && pid != daemon && !keeps {
			out = append(out, p.command)
		}
	}
	return out
}

// containerdPID is the number of the engine's containerd, or 0.
func (e *engine) containerdPID() int {
	for _, dir := range e.glob("/proc/[0-9]*") {
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil || !bytes.Contains(line, []byte("/containerd\x00--config\x00"+e.dir+"/")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			return pid
		}
	}
	return 0
}

// namespaceDescriptors are the engine's own that hold a namespace alive.
func (e *engine) namespaceDescriptors() []string {
	var out []string
	for _, p := range e.glob(fmt.Sprintf("/proc/%d/fd/*", e.cmd.Process.Pid)) {
		if to, err := os.Readlink(p); err == nil && (strings.HasPrefix(to, "net:") || strings.HasPrefix(to, "user:") || e.ours(to) && strings.Contains(to, "/boxes/boxes/")) {
			out = append(out, to)
		}
	}
	return out
}

// containerd connects to the engine's own, in the engine's namespace there.
func (e *engine) containerd() (*containerd.Client, context.Context, func()) {
	e.t.Helper()
	cl, err := containerd.New(filepath.Join(e.dir, "st/c/containerd.sock"))
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), "sandboxd"), 30*time.Second)
	return cl, ctx, func() { cancel(); _ = cl.Close() }
}

// containerdTraces lists what containerd knows beyond whole images.
func (e *engine) containerdTraces(tr traces) {
	e.t.Helper()
	cl, ctx, done := e.containerd()
	defer done()
	check := func(err error) {
		e.t.Helper()
		if err != nil {
			e.t.Fatalf("containerd: %v\n%s", err, e.log)
		}
	}
	cs, err := cl.ContainerService().List(ctx)
	check(err)
	for _, c := range cs {
		tr.add("containers", c.ID)
	}
	check(cl.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		if i.Kind != snapshots.KindCommitted {
			tr.add("snapshots", i.Name)
		}
		return nil
	}))
	ls, err := cl.LeasesService().List(ctx)
	check(err)
	for _, l := range ls {
		tr.add("leases", fmt.Sprint(l))
	}
	status, err := cl.ContentStore().ListStatuses(ctx)
	check(err)
	for _, s := range status {
		tr.add("ingests", s.Ref)
	}
	wanted := map[string]bool{}
	list, err := cl.ImageService().List(ctx)
	check(err)
	for _, img := range list {
		err := images.Walk(ctx, images.HandlerFunc(func(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
			wanted[d.Digest.String()] = true
			return images.Children(ctx, cl.ContentStore(), d)
		}), img.Target)
		if err != nil {
			tr.add("half images", img.Name+": "+err.Error())
		}
	}
	check(cl.ContentStore().Walk(ctx, func(i content.Info) error {
		if !wanted[i.Digest.String()] {
			tr.add("blobs of no image", i.Digest.String())
		}
		return nil
	}))
}

// leavesNothing waits until no trace is left and names those that stay.
func (e *engine) leavesNothing(t testing.TB, after string) {
	t.Helper()
	const bound = 60 * time.Second
	var tr traces
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if tr = e.traces(); len(tr) == 0 {
			return
		}
	}
	t.Errorf("%s: after %s there is still\n%s\nthe engine says:\n%s", after, bound, tr, ending(e.log.String()))
}
