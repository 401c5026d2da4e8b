package mcpbridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// PinMode says what happens to a tool whose definition is not the one that was
// admitted first, or approved since.
type PinMode string

// The modes. The zero value is PinWarn.
const (
	// PinStrict holds back a changed or added tool until it is approved.
	PinStrict PinMode = "strict"
	// PinWarn serves it, and reports it until it is approved.
	PinWarn PinMode = "warn"
	// PinOff keeps no definitions.
	PinOff PinMode = "off"
)

// PinStore keeps the tool definitions of servers: those that are approved, and
// those that were last seen. It is safe for concurrent use, and several
// processes may use one folder: approved definitions change at a server's
// first admission and by Approve alone.
type PinStore struct {
	dir string

	mu  sync.Mutex
	mem map[string][]byte // in place of files, where there is no folder
}

// OpenPins uses a folder that is made when it is needed, for its owner alone.
// An empty one keeps everything in memory.
func OpenPins(dir string) *PinStore { return &PinStore{dir: dir, mem: map[string][]byte{}} }

// definitions are tools' definitions by the names that the server gives them.
type definitions map[string]json.RawMessage

const maxPinFile = 64 << 20

func (p *PinStore) path(name string) string { return filepath.Join(p.dir, name+".json") }

// load returns nil definitions where there are none.
func (p *PinStore) load(name string) (definitions, error) {
	b, err := p.read(name)
	if err != nil || b == nil {
		return nil, err
	}
	var f struct {
		Version int         `json:"version"`
		Tools   definitions `json:"tools"`
	}
	if err := json.Unmarshal(b, &f); err != nil || f.Version != 1 || f.Tools == nil {
		return nil, fmt.Errorf("pinned tools: %s cannot be read: remove it to pin the tools anew", p.path(name))
	}
	return f.Tools, nil
}

// read returns nil where there is no such file.
func (p *PinStore) read(name string) ([]byte, error) {
	if p.dir == "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.mem[name], nil
	}
	fi, err := os.Stat(p.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("pinned tools: %w", err)
	case !fi.Mode().IsRegular() || fi.Size() > maxPinFile:
		return nil, fmt.Errorf("pinned tools: %s is no file of at most %d bytes", p.path(name), maxPinFile)
	}
	b, err := os.ReadFile(p.path(name))
	if err != nil {
		return nil, fmt.Errorf("pinned tools: %w", err)
	}
	return b, nil
}

// save writes whole or not at all.
func (p *PinStore) save(name string, d definitions) error {
	b, err := json.Marshal(map[string]any{"version": 1, "tools": d})
	if err != nil {
		return fmt.Errorf("pinned tools: %w", err)
	}
	return p.write(name, b)
}

func (p *PinStore) write(name string, b []byte) error {
	if p.dir == "" {
		p.mu.Lock()
		p.mem[name] = b
		p.mu.Unlock()
		return nil
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("pinned tools: %w", err)
	}
	f, err := os.CreateTemp(p.dir, ".new-*")
	if err != nil {
		return fmt.Errorf("pinned tools: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), p.path(name))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("pinned tools: %w", err), os.Remove(f.Name()))
	}
	return nil
}

// stamp changes when the approved definitions do.
func (p *PinStore) stamp(slug string) string {
	if p.dir == "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		return hash(p.mem[slug+".approved"])
	}
	fi, err := os.Stat(p.path(slug + ".approved"))
	if err != nil {
		return ""
	}
	return fmt.Sprint(fi.ModTime().UnixNano(), fi.Size())
}

// see notes what a server offers now, and approves it where nothing was
// approved before. It returns what is approved.
func (p *PinStore) see(slug string, now definitions) (definitions, error) {
	approved, err := p.load(slug + ".approved")
	if err != nil {
		return nil, err
	}
	if approved == nil {
		if len(now) == 0 {
			return definitions{}, nil // a server without tools has pinned nothing
		}
		return now, p.save(slug+".approved", now)
	}
	seen, err := p.load(slug + ".seen")
	if err != nil || !seen.equal(now) {
		return approved, p.save(slug+".seen", now)
	}
	return approved, nil
}

func (d definitions) equal(o definitions) bool {
	if len(d) != len(o) {
		return false
	}
	for name, def := range d {
		if !same(def, o[name]) {
			return false
		}
	}
	return true
}

// Diff says how the tools that a server (by name or slug) last offered differ
// from the approved ones.
func (p *PinStore) Diff(server string) ([]ToolChange, error) {
	changes, _, _, err := p.diff(server)
	return changes, err
}

func (p *PinStore) diff(server string) ([]ToolChange, definitions, definitions, error) {
	slug := Slug(server)
	if slug == "" {
		return nil, nil, nil, errors.New("a server's name has a letter or digit")
	}
	approved, err := p.load(slug + ".approved")
	if err != nil {
		return nil, nil, nil, err
	}
	if approved == nil {
		return nil, nil, nil, fmt.Errorf("no tools of server %q are pinned: it has not run yet, or has pin: off", slug)
	}
	seen, err := p.load(slug + ".seen")
	if err != nil {
		return nil, nil, nil, err
	}
	if seen == nil {
		seen = approved
	}
	return compare(approved, seen), approved, seen, nil
}

// Approve approves the definitions that a server last offered: of the named
// tools, or of all. It returns what it approved. review, where set, sees that
// first; its error ends it, and what the server offers meanwhile is not
// approved with it.
func (p *PinStore) Approve(server string, tools []string, review func([]ToolChange) error) ([]ToolChange, error) {
	changes, approved, seen, err := p.diff(server)
	if err != nil {
		return nil, err
	}
	for _, t := range tools {
		if !slices.ContainsFunc(changes, func(c ToolChange) bool { return c.Tool == t }) {
			return nil, fmt.Errorf("tool %.128q of server %.64q has no change to approve", t, server)
		}
	}
	if len(tools) > 0 {
		changes = slices.DeleteFunc(changes, func(c ToolChange) bool { return !slices.Contains(tools, c.Tool) })
	}
	if len(changes) == 0 {
		return nil, nil
	}
	if review != nil {
		if err := review(changes); err != nil {
			return nil, err
		}
	}
	for _, c := range changes {
		if def, ok := seen[c.Tool]; ok {
			approved[c.Tool] = def
		} else {
			delete(approved, c.Tool)
		}
	}
	return changes, p.save(Slug(server)+".approved", approved)
}

// pinned says why a definition is not the approved one, or "".
func (d definitions) pinned(name string, def []byte) string {
	old, ok := d[name]
	switch {
	case !ok:
		return "it was added since the tools were approved"
	case !same(old, def):
		return "its definition has changed since it was approved"
	}
	return ""
}

func same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	ca, err1 := canonical(a)
	cb, err2 := canonical(b)
	return err1 == nil && err2 == nil && hash(ca) == hash(cb)
}

// approveHint is the next step.
func approveHint(slug string) string {
	return ": see sandboxd tools diff " + slug + ", then sandboxd tools approve " + slug
}

func (m PinMode) valid() bool {
	return slices.Contains([]PinMode{PinStrict, PinWarn, PinOff}, m)
}

// PinModes are the modes as configuration writes them.
func PinModes() string {
	return strings.Join([]string{string(PinStrict), string(PinWarn), string(PinOff)}, ", ")
}
