package registries

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bounds of one client's answer.
const (
	askBound  = 15 * time.Second // a cold npm on a busy machine takes seconds
	maxAnswer = 256 << 10        // bytes
	maxURLs   = 64               // of one registry
)

// Config is how a Finder works. The zero value asks the clients alone.
type Config struct {
	// URLs are further places of a registry, by its name: the operator's.
	URLs map[string][]string
	// Mirrors take the place of what the clients name, by the registry's name.
	Mirrors map[string]string
	// Logger takes what could not be found out. Nil drops it.
	Logger *slog.Logger
}

// Finder asks clients for their registries and remembers what they said. It is
// safe for concurrent use.
type Finder struct {
	urls    map[string][]string
	mirrors map[string]string
	log     *slog.Logger

	mu    sync.Mutex
	found map[string][]string

	npmMu    sync.Mutex
	npmAsked bool
	npmSaid  []byte
}

// New returns a Finder, which asks nobody yet.
func New(cfg Config) *Finder {
	f := &Finder{urls: map[string][]string{}, mirrors: maps.Clone(cfg.Mirrors), log: cfg.Logger, found: map[string][]string{}}
	for name, urls := range cfg.URLs {
		f.urls[name] = slices.Clone(urls)
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	return f
}

// Origins returns for each name (npm, pypi, go) the origins of its registries,
// each as https://HOST[:PORT] or http://HOST[:PORT], the client's first. A
// client that is not installed, or that does not answer in time, adds none.
// Clients that were not asked before are asked side by side.
func (f *Finder) Origins(ctx context.Context, names []string) map[string][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	answers := make([][]string, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		if _, known := f.found[name]; known || slices.Contains(names[:i], name) {
			continue
		}
		wg.Go(func() { answers[i] = f.ask(ctx, name) })
	}
	wg.Wait()
	out := make(map[string][]string, len(names))
	for i, name := range names {
		if _, known := f.found[name]; !known {
			found := f.origins(name, append(answers[i], f.urls[name]...))
			if ctx.Err() != nil { // nobody's answer
				continue
			}
			f.found[name] = found
		}
		out[name] = slices.Clone(f.found[name])
	}
	return out
}

// ask returns the URLs that the clients of a registry name, as they name them.
func (f *Finder) ask(ctx context.Context, name string) []string {
	if mirror := f.mirrors[name]; mirror != "" {
		return []string{mirror}
	}
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	switch name {
	case "npm":
		return f.npm(ctx)
	case "pypi":
		return append(f.pip(ctx), f.uv()...)
	case "go":
		return f.golang(ctx)
	}
	return nil
}

// origins keeps scheme, host and port of each URL, and nothing else of it.
func (f *Finder) origins(name string, urls []string) []string {
	var out []string
	for _, raw := range urls {
		o, ok := Origin(raw)
		if !ok {
			// The value may hold credentials, so it is not shown.
			f.log.Warn("a registry's address is not an http or https URL", "registry", name)
			continue
		}
		if !slices.Contains(out, o) && len(out) < maxURLs {
			out = append(out, o)
		}
	}
	return out
}

// Origin returns the scheme, host and port of an http or https URL, without
// the scheme's own port.
func Origin(raw string) (string, bool) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return "", false
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80" {
		port = ""
	}
	if port != "" {
		return u.Scheme + "://" + net.JoinHostPort(host, port), true
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return u.Scheme + "://" + host, true
}
