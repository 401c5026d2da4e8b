package policies

import (
	"regexp"
	"strconv"
	"time"

	"github.com/sandboxd/sandboxd/policies/strict"
	"github.com/sandboxd/sandboxd/sandbox"
)

// Decode takes a policy out of a mapping that is a document of its own (path
// "") or part of another one. Faults and warnings go to r; what it returns
// must not be used when r has errors. A nil node is an empty policy.
func (l Loader) Decode(r *strict.Reporter, n *strict.Node, path string) *Policy {
	d := decoder{r: r, loader: l}
	return d.policy(n, path)
}

// decoder is one Decode under way.
type decoder struct {
	r      *strict.Reporter
	loader Loader
	// reviewed leaves the compiler's warnings out: the document is a preset.
	reviewed bool
}

func (d *decoder) policy(n *strict.Node, path string) *Policy {
	r := d.r
	m := r.Map(n, path, "version", "egress", "isolation", "wasm_counts_as_container", "limits", "tools", "env")
	if m.Node() == nil {
		return &Policy{}
	}
	if m.Has("version") {
		if v := m.Get("version"); v == nil || v.Kind != strict.Int || v.Text != strconv.Itoa(Version) {
			m.Errorf("version", "want %d, the one version that is known", Version)
		}
	}
	p := &Policy{
		Isolation:             isolation(m),
		WASMCountsAsContainer: m.Bool("wasm_counts_as_container"),
		Limits:                DecodeLimits(r, m.Get("limits"), m.Path("limits")),
		Tools:                 tools(r, m.Get("tools"), m.Path("tools")),
		Env:                   m.Names("env", envName, "a variable's name"),
	}
	switch {
	case m.Get("egress") != nil:
		p.Egress = d.egress(m.Get("egress"), m.Path("egress"))
	case m.Has("egress"):
		m.Errorf("egress", "the section is empty: leave the key out for no network, or start it with mode: allowlist")
	}
	if m.Has("tools") && m.Get("tools") == nil {
		m.Errorf("tools", "the section is empty: leave the key out for every tool, or write allow: [] for none")
	}
	if p.WASMCountsAsContainer && p.Isolation != sandbox.Container && p.Isolation != 0 {
		r.Warnf(m.Get("wasm_counts_as_container"), m.Path("wasm_counts_as_container"),
			"has no effect with a minimum of %s: it speaks of a minimum of container only", p.Isolation)
	}
	return p
}

func isolation(m strict.Map) sandbox.Isolation {
	s := m.String("isolation")
	if s == "" {
		if n := m.Get("isolation"); n != nil && n.Kind == strict.String {
			m.Errorf("isolation", "is empty: leave the key out for no minimum")
		}
		return 0
	}
	i, err := sandbox.ParseIsolation(s)
	if err != nil {
		m.Errorf("isolation", "%v", err)
	}
	return i
}

// DecodeLimits takes sandbox.Limits out of a mapping; a nil node is none.
func DecodeLimits(r *strict.Reporter, n *strict.Node, path string) sandbox.Limits {
	m := r.Map(n, path, "memory", "cpus", "pids", "files", "tmp", "file_size", "wall", "stop_grace")
	l := sandbox.Limits{
		MemoryBytes: m.Bytes("memory"),
		CPUs:        m.Number("cpus", 0.01, 1024),
		PIDs:        m.Int("pids", 1, 1<<22),
		Files:       uint64(m.Int("files", 1, 1<<20)),
		TmpBytes:    m.Bytes("tmp"),
		FileBytes:   m.Bytes("file_size"),
		Wall:        m.Duration("wall"),
		StopGrace:   m.Duration("stop_grace"),
	}
	if l.MemoryBytes > 0 && l.MemoryBytes < 16<<20 {
		m.Errorf("memory", "is under 16MiB, too little to start anything")
		l.MemoryBytes = 0
	}
	if l.StopGrace > time.Minute {
		m.Errorf("stop_grace", "is over a minute")
		l.StopGrace = 0
	}
	// A rule that the contract has and this file has not yet.
	if err := l.Validate(); err != nil {
		r.Errorf(n, path, "%v", err)
	}
	return l
}

func tools(r *strict.Reporter, n *strict.Node, path string) Tools {
	m := r.Map(n, path, "allow", "include")
	return Tools{
		Allow:   m.Names("allow", toolName, "a tool's name"),
		Include: m.Names("include", toolName, "a tool's name"),
	}
}

var (
	// MCP asks for letters, digits and _-./ ; servers use more, control bytes
	// and quotes are never a name.
	toolName = regexp.MustCompile(`^[^\x00-\x20"\\\x7f]{1,256}$`)
	envName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)
