package suspect

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Kind is the closed set of what is looked for.
type Kind string

// The kinds.
const (
	Hidden      Kind = "hidden_characters" // invisible, reordering or control characters
	LookAlike   Kind = "look_alike"        // one word in letters of several scripts
	Instruction Kind = "instruction"       // overrides what a model was told
	Secrecy     Kind = "secrecy"           // has a model keep something from its user
	Markup      Kind = "model_markup"      // imitates a conversation's own markup
	Credential  Kind = "credential_path"   //nolint:gosec // names where secrets are kept
	Precedence  Kind = "precedence"        // wants to be called before or instead of others
	Encoded     Kind = "encoded"           // long text that no person reads
)

// Finding is one suspicious place.
type Finding struct {
	Kind Kind `json:"kind"`
	// Path is a JSON pointer (RFC 6901) into the definition, at most 200 bytes.
	Path string `json:"path"`
	// Excerpt is the text around it, quoted as ASCII and cut to about 120 bytes.
	Excerpt string `json:"excerpt"`
}

// MaxFindings bounds what Find reports of one definition.
const MaxFindings = 16

type pattern struct {
	kind Kind
	re   *regexp.Regexp
}

// Finder holds the compiled patterns. It is safe for concurrent use.
type Finder struct{ patterns []pattern }

// New compiles the patterns, whose matching takes linear time.
func New() *Finder {
	const gap = `[\s\S]{0,40}?`
	all := []struct {
		kind Kind
		re   string
	}{
		{Instruction, `\b(ignore|disregard|forget|override)\b` + gap + `\b(previous|prior|above|earlier|all|any|other|your|system)\b` + gap + `\b(instructions?|prompts?|rules?|guidelines|directives?)\b`},
		{Instruction, `\b(system|developer) (prompt|message)\b`},
		{Instruction, `\byou (are|must) now\b|\bnew instructions?:|\bact as (an?|the) (admin|root|developer|system)`},
		{Secrecy, `\b(do not|don't|never|without)\b` + gap + `\b(tell|mention|inform|notify|reveal|show|telling|mentioning|informing|notifying|revealing|showing)\b` + gap + `\b(the )?(user|users|human)\b`},
		{Secrecy, `\b(silently|secretly|covertly)\b`},
		{Markup, `</?(important|system|instructions?|assistant|user|secret|hidden|admin)>|<\|[a-z_]+\|>|\[/?inst\]|<<sys>>`},
		{Credential, `(~|\$home|/home/[^/\s]+|/root)/\.(ssh|aws|kube|gnupg|docker|config/gcloud|netrc|npmrc|cursor|claude)|\bid_(rsa|ed25519|ecdsa)\b|/etc/(passwd|shadow)\b|\bmcp\.json\b`},
		{Precedence, `\b(before|instead of|prior to)\b` + gap + `\b(any|all|every|each|using|calling)\b` + gap + `\bother (tools?|servers?|functions?)\b`},
		{Encoded, `[A-Za-z0-9+/_=-]{160,}`},
	}
	f := &Finder{}
	for _, p := range all {
		f.patterns = append(f.patterns, pattern{p.kind, regexp.MustCompile(`(?i)` + p.re)})
	}
	return f
}

// Find looks at every string of a definition, names of members included. What
// is no JSON has no findings.
func (f *Finder) Find(def json.RawMessage) []Finding {
	var v any
	if json.Unmarshal(def, &v) != nil {
		return nil
	}
	w := walk{f: f}
	w.value(v, "")
	return w.found
}

type walk struct {
	f     *Finder
	found []Finding
}

func (w *walk) value(v any, path string) {
	if len(w.found) >= MaxFindings {
		return
	}
	switch v := v.(type) {
	case string:
		w.text(v, path)
	case []any:
		for i, e := range v {
			w.value(e, below(path, strconv.Itoa(i)))
		}
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			at := below(path, k)
			w.text(k, at)
			w.value(v[k], at)
		}
	}
}

// maxPath bounds a path, in bytes, before it is quoted.
const maxPath = 200

// below is the path of a value's member. It ends at the bound: a long name that
// were in the path of everything below it would be copied for each of them.
func below(path, name string) string {
	if len(path) > maxPath {
		return path
	}
	name = name[:min(len(name), maxPath+1)]
	return path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func (w *walk) text(s, path string) {
	if at, kind := strange(s); kind != "" {
		w.report(kind, path, s, at)
	}
	for _, p := range w.f.patterns {
		if m := p.re.FindStringIndex(s); m != nil {
			w.report(p.kind, path, s, m[0])
		}
	}
}

func (w *walk) report(kind Kind, path, s string, at int) {
	if len(w.found) >= MaxFindings {
		return
	}
	if len(path) > maxPath {
		path = path[:maxPath] + "…"
	}
	// The path has members' names in it, which are the server's words too.
	path = strings.Trim(strconv.QuoteToASCII(path), `"`)
	w.found = append(w.found, Finding{Kind: kind, Path: path, Excerpt: strconv.QuoteToASCII(s[max(at-20, 0):min(at+80, len(s))])})
}

// strange finds the first character that a reader does not see, or a word that
// mixes scripts whose letters look alike.
func strange(s string) (at int, kind Kind) {
	var latin, other bool
	for i, r := range s {
		switch {
		case hidden(r):
			return i, Hidden
		case unicode.Is(unicode.Latin, r):
			latin = true
		case unicode.In(r, unicode.Cyrillic, unicode.Greek, unicode.Armenian, unicode.Cherokee):
			other = true
		case !unicode.IsLetter(r) && !unicode.IsMark(r):
			latin, other = false, false
		}
		if latin && other {
			return i, LookAlike
		}
	}
	return 0, ""
}

// Strip takes the characters out that a reader does not see, those that
// reorder what is seen, and control characters but white space.
func Strip(s string) string {
	return strings.Map(func(r rune) rune {
		if hidden(r) {
			return -1
		}
		return r
	}, s)
}

// hidden characters: control characters but white space, and Unicode's format
// characters (zero width, bidirectional, tags) and variation selectors beyond
// the one that emoji use. Joiners within emoji and scripts that need them are
// let through.
func hidden(r rune) bool {
	switch {
	case r == '\t' || r == '\n' || r == '\r', r == '\u200d', r == '\u200c', r == '\ufe0f', r == '\ufe0e', r == '\u00ad':
		return false
	case unicode.IsControl(r), unicode.Is(unicode.Cf, r), unicode.Is(unicode.Co, r):
		return true
	}
	return unicode.Is(unicode.Variation_Selector, r) || r == '\u2800' || r == '\u3164' || r == '\u115f'
}
