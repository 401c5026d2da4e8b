package registries

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
)

// NPM is npm's configuration, as far as another npm needs it to fetch what this
// host's would.
type NPM struct {
	// Registry is the address of the registry, and Scopes those of scopes, by
	// @NAME:registry.
	Registry string
	Scopes   map[string]string
	// CAFile is the file of authorities that npm trusts instead of its own;
	// Insecure says that it checks no certificate.
	CAFile   string
	Insecure bool
	// Credentials are settings such as //HOST/PATH/:_authToken with their
	// values, which are secret.
	Credentials map[string]string
}

// ErrNoClient says that a registry's client is not here to ask.
var ErrNoClient = errors.New("no client here names the registry")

// npmSetting is one effective line of `npm config list -l`.
var npmSetting = regexp.MustCompile(`^(registry|@[^\s:]+:registry|cafile|userconfig|globalconfig|strict-ssl) = (".*"|true|false)$`)

// NPM asks npm for its configuration, and reads the credentials, which npm does
// not tell, from the files that it names. Where npm is not installed, the
// registry is the first one of the operator's, and ErrNoClient that there is
// none.
func (f *Finder) NPM(ctx context.Context) (NPM, error) {
	out := NPM{Scopes: map[string]string{}, Credentials: map[string]string{}}
	raw, _ := f.npmOutput(ctx)
	var user, global string
	for line := range lines(raw) {
		m := npmSetting.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		var value string
		_ = json.Unmarshal([]byte(m[2]), &value) // a boolean stays empty
		switch m[1] {
		case "registry":
			out.Registry = value
		case "cafile":
			out.CAFile = value
		case "strict-ssl":
			out.Insecure = m[2] == "false"
		case "userconfig":
			user = value
		case "globalconfig":
			global = value
		default:
			out.Scopes[m[1]] = value
		}
	}
	if mirror := f.mirrors["npm"]; mirror != "" {
		out.Registry, out.Scopes = mirror, map[string]string{}
	}
	if out.Registry == "" && len(f.urls["npm"]) > 0 {
		out.Registry = f.urls["npm"][0]
	}
	if out.Registry == "" {
		return out, ErrNoClient
	}
	for _, file := range []string{global, user} {
		f.npmCredentials(file, out.Credentials)
	}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		if len(k) > len(npmPrefix) && strings.EqualFold(k[:len(npmPrefix)], npmPrefix) && strings.HasPrefix(k[len(npmPrefix):], "//") && v != "" {
			out.Credentials[k[len(npmPrefix):]] = v
		}
	}
	return out, nil
}

const npmPrefix = "npm_config_"

var envReference = regexp.MustCompile(`\$\{([^}?]+)(\?)?\}`)

// npmCredentials reads the lines of an npmrc that begin with //.
func (f *Finder) npmCredentials(file string, into map[string]string) {
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxAnswer {
		return // npm would have said so
	}
	data, err := os.ReadFile(file)
	if err != nil {
		f.log.Warn("a client's configuration could not be read", "client", "npm")
		return
	}
	for line := range lines(data) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		if !ok || !strings.HasPrefix(line, "//") {
			continue
		}
		value = strings.TrimSpace(value)
		if len(value) > 1 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		into[expandEnv(strings.TrimSpace(key))] = expandEnv(value)
	}
}

// expandEnv puts variables in the place of ${NAME}, as npm does: one that is
// not set stays as it is written, or is empty with a question mark.
func expandEnv(s string) string {
	return envReference.ReplaceAllStringFunc(s, func(ref string) string {
		m := envReference.FindStringSubmatch(ref)
		if v, ok := os.LookupEnv(m[1]); ok {
			return v
		}
		if m[2] != "" {
			return ""
		}
		return ref
	})
}

// Authorization is the header that a request for an address carries: that of
// the most exact of the credentials for its place. Empty means none.
func (n NPM) Authorization(host, path string) string {
	place := "//" + host + path
	best, header := -1, ""
	for key, value := range n.Credentials {
		at := strings.LastIndex(key, ":")
		if at < 0 {
			continue
		}
		prefix := strings.TrimSuffix(key[:at], "/")
		if len(prefix) <= best || place != prefix && !strings.HasPrefix(place, prefix+"/") {
			continue
		}
		switch key[at+1:] {
		case "_authToken":
			best, header = len(prefix), "Bearer "+value
		case "_auth":
			best, header = len(prefix), "Basic "+value
		}
	}
	return header
}
