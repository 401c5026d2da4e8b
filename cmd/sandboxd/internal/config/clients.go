package config

import (
	"crypto/sha256"
	"encoding/hex"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/sandboxd/sandboxd/policies/strict"
)

// minToken is the length of a token that nobody guesses.
const minToken = 16

// Client is one caller of what is served, known by its bearer token.
type Client struct {
	Name string
	// TokenSHA256 is of the token, so that comparing takes the same time for
	// every guess.
	TokenSHA256 [sha256.Size]byte
	// Servers are those that it sees; "*" is all. Tools narrows their tools by
	// patterns: TOOL or SERVER:TOOL; empty leaves all.
	Servers, Tools []string
}

var (
	clientName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	reference1 = regexp.MustCompile(`^\{\{\s*secrets\.[A-Za-z0-9_]+\s*\}\}$`)
	hexSum     = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// clientEntry is a client with its place in a file.
type clientEntry struct {
	Client
	file *file
	node *strict.Node
	path string
}

// clients takes the list of those that may call.
func (f *file) clients(m strict.Map) {
	for i, n := range m.List("clients") {
		c := f.r.Map(n, strict.Index("clients", i), "name", "token", "token_sha256", "servers", "tools")
		e := clientEntry{Client: Client{Name: c.String("name"), Servers: c.Strings("servers"), Tools: c.Strings("tools")}, file: f, node: n, path: strict.Index("clients", i)}
		if !clientName.MatchString(e.Name) && !f.r.Faulty(c.Path("name")) {
			c.Errorf("name", badID)
		}
		f.token(c, &e)
		if len(e.Servers) == 0 && !f.r.Faulty(c.Path("servers")) {
			c.Errorf("servers", `names the servers that this client sees, or ["*"] for all: without it there is none`)
		}
		for _, p := range e.Tools {
			_, tool, found := strings.Cut(p, ":")
			if !found {
				tool = p
			}
			if _, err := path.Match(tool, "x"); err != nil || tool == "" {
				c.Errorf("tools", "%.80q: want TOOL or SERVER:TOOL, with * ? and [a-z] as in file names", p)
			}
		}
		f.callers = append(f.callers, e)
	}
}

// token takes one of the two forms. A token itself never stands in the file,
// and a fault never repeats it.
func (f *file) token(c strict.Map, e *clientEntry) {
	text, sum := c.String("token"), c.String("token_sha256")
	switch {
	case f.r.Faulty(c.Path("token")) || f.r.Faulty(c.Path("token_sha256")):
	case (text == "") == (sum == ""):
		c.Errorf("token", "want one of token (as {{secrets.NAME}}) and token_sha256")
	case sum != "":
		if !hexSum.MatchString(sum) {
			c.Errorf("token_sha256", "want the 64 hex digits, in lower case, that sha256sum prints for the token")
			return
		}
		// The pattern leaves nothing to go wrong.
		_, _ = hex.Decode(e.TokenSHA256[:], []byte(sum))
	case !reference1.MatchString(strings.TrimSpace(text)):
		c.Errorf("token", "write it as {{secrets.NAME}}, or its SHA-256 as token_sha256: this file is no place for a token")
	default:
		v, err := f.secrets.expand(strings.TrimSpace(text))
		switch {
		case err != nil:
			c.Errorf("token", "%s", err)
		case len(v.Reveal()) < minToken:
			c.Errorf("token", "the secret has fewer than %d characters: make it longer", minToken)
		default:
			e.TokenSHA256 = sha256.Sum256([]byte(v.Reveal()))
		}
	}
}

// mergeClients lays later files over earlier ones, by name, and checks them
// against what is served.
func mergeClients(files []*file, served []Server) []Client {
	var all []clientEntry
	for _, f := range files {
		for _, e := range f.callers {
			i := slices.IndexFunc(all, func(o clientEntry) bool { return o.Name == e.Name })
			switch {
			case i < 0:
				all = append(all, e)
			case all[i].file == f:
				f.r.Errorf(e.node, e.path, "client %s is there twice: give one of them another name", e.Name)
			default:
				f.r.Warnf(e.node, e.path, "takes the place of client %s of an earlier file", e.Name)
				all[i] = e
			}
		}
	}
	var out []Client
	for i, e := range all {
		for _, o := range all[:i] {
			if o.TokenSHA256 == e.TokenSHA256 && e.TokenSHA256 != [sha256.Size]byte{} {
				e.file.r.Errorf(e.node, e.path, "clients %s and %s have the same token", o.Name, e.Name)
			}
		}
		for _, id := range e.Servers {
			if id != "*" && !slices.ContainsFunc(served, func(s Server) bool { return folded(s.ID) == folded(id) }) {
				var known []string
				for _, s := range served {
					known = append(known, s.ID)
				}
				hint := ""
				if near := strict.Nearest(id, known); near != "" {
					hint = ": did you mean " + near + "?"
				}
				e.file.r.Errorf(e.node, e.path, "client %s: no server %.64q is served%s", e.Name, id, hint)
			}
		}
		out = append(out, e.Client)
	}
	return out
}
