package mcpbridge

import (
	"bytes"
	"strings"

	"github.com/sandboxd/sandboxd/mcpbridge/suspect"
)

// minSecret is the shortest secret, in bytes, that is looked for.
const minSecret = 6

// shown makes text of a server's fit to be shown.
type shown struct {
	secrets []string
	strip   *strings.Replacer
}

func newShown(secrets []string) shown {
	var s shown
	var pairs []string
	add := func(v string) {
		if len(v) >= minSecret {
			s.secrets = append(s.secrets, v)
			pairs = append(pairs, v, "[secret]")
		}
	}
	for _, v := range secrets {
		add(v)
		if lines := strings.FieldsFunc(v, func(r rune) bool { return r == '\n' || r == '\r' }); len(lines) > 1 {
			for _, l := range lines { // a log has a key by its lines
				add(l)
			}
		}
	}
	s.strip = strings.NewReplacer(pairs...)
	return s
}

// text takes secrets and hidden characters out.
func (s shown) text(t string) string { return suspect.Strip(s.strip.Replace(t)) }

// line takes secrets out of a line of a log.
func (s shown) line(l []byte) []byte {
	for _, v := range s.secrets {
		if bytes.Contains(l, []byte(v)) {
			return []byte(s.strip.Replace(string(l)))
		}
	}
	return l
}

// reason takes the same out of what a server, or its end, gave as a reason.
func (s shown) reason(e *Error) *Error {
	if e == nil {
		return nil
	}
	return &Error{Code: e.Code, Message: s.text(e.Message), Path: e.Path, cause: e}
}
