package clients

import (
	"net/url"
	"regexp"
	"strings"
	"unicode"
)

var (
	secretWord  = regexp.MustCompile(`(?i)(token|secret|passw|passphrase|pwd|api_?-?key|credential|auth|private|bearer|cookie|session|signature|dsn|connection_?-?string|webhook)|(^|[_-])(key|pat|pass|jwt|sas)$`)
	secretValue = regexp.MustCompile(`^(sk|pk|rk|sess|xox[a-z]|ghp|gho|ghu|ghs|ghr|github_pat|glpat|ntn|secret|shpat|pat|figd|hf|dop|npm|pypi|AKIA|ASIA|AIza|ya29|eyJ|SG|xapp|lin_api|ctx7sk|pplx|tvly|fc|r8|gsk)[-_.A-Z0-9a-z]{12,}$`)
	plainWord   = regexp.MustCompile(`^([a-z][a-z_-]{0,31}|[A-Z_]{1,32}|[0-9.,:]{1,15}|[a-z]{2}([-_][A-Za-z0-9]{2,5}){0,2})$`)
	mixed       = regexp.MustCompile(`^[A-Za-z0-9+/=_.~-]{16,}$`)
)

// maySecret says whether a value is or may be a secret, by its name and by what
// it looks like. In doubt it is one: a file too many does no harm.
func maySecret(name, value string) bool {
	switch v := strings.TrimSpace(value); {
	case v == "" || v == "true" || v == "false":
		return false
	case secretWord.MatchString(name):
		// A path or a plain address that a secret's name is for is none itself.
		return !strings.HasPrefix(v, "/") || strings.Contains(v, "://")
	default:
		return looksSecret(v)
	}
}

// looksSecret judges a value without a name, such as an argument.
func looksSecret(v string) bool {
	if secretValue.MatchString(v) {
		return true
	}
	if u, err := url.Parse(v); err == nil && u.Scheme != "" && u.Host != "" {
		if _, has := u.User.Password(); has {
			return true
		}
		for key := range u.Query() {
			if secretWord.MatchString(key) {
				return true
			}
		}
		return false
	}
	if scheme, _, ok := strings.Cut(v, " "); ok && (strings.EqualFold(scheme, "bearer") || strings.EqualFold(scheme, "basic")) {
		return true
	}
	if !mixed.MatchString(v) || strings.HasPrefix(v, "/") || strings.HasPrefix(v, "./") || plainWord.MatchString(v) {
		return false
	}
	return strings.ContainsAny(v, "0123456789") && strings.ContainsFunc(v, func(r rune) bool { return r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' }) &&
		!strings.Contains(v, "/") && strings.Count(v, ".") < 2 && strings.Count(v, "-") < 5
}

var secretFlag = regexp.MustCompile(`^--?[A-Za-z]`)

// secretArgument returns the index of an argument that is or may be a secret,
// or -1: arguments can be seen by everyone.
func secretArgument(args []string) int {
	for i, a := range args {
		name, value, has := strings.Cut(a, "=")
		switch {
		case looksSecret(a):
			return i
		case has && secretFlag.MatchString(name) && (secretWord.MatchString(name) || looksSecret(value)) && maySecret(name, value):
			return i
		case has && !secretFlag.MatchString(name) && looksSecret(value):
			return i
		case i > 0 && secretFlag.MatchString(args[i-1]) && !strings.Contains(args[i-1], "=") && !strings.HasPrefix(a, "-") && maySecret(strings.TrimLeft(args[i-1], "-"), a):
			return i
		case strings.Contains(a, ":") && secretWord.MatchString(strings.SplitN(a, ":", 2)[0]) && !strings.Contains(strings.SplitN(a, ":", 2)[0], "/") && !strings.HasPrefix(a, "oci:"):
			return i // Authorization: …
		}
	}
	return -1
}

// shown makes text of a stranger fit for one line.
func shown(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return quoteASCII(s)
}

// HoldsSecret reports whether a command line has an argument that is or may be
// a secret.
func HoldsSecret(argv []string) bool { return secretArgument(argv) >= 0 }

// Plain makes a stranger's words fit for one line of a terminal: without
// control characters, and cut to most characters.
func Plain(s string, most int) string {
	r := []rune(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r) {
			return ' '
		}
		return r
	}, s))
	if len(r) > most {
		r = append(r[:most-1], '…')
	}
	return string(r)
}
