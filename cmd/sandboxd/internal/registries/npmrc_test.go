//go:build unix

package registries

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What another npm is given: registry, scopes, and credentials that npm itself
// does not tell, with their variables filled in.
func TestNPMConfiguration(t *testing.T) {
	need(t, "npm")
	home := t.TempDir()
	t.Setenv("MIRROR_TOKEN", "t0ken")
	t.Setenv("npm_config_//other.example/:_authToken", "from-env")
	t.Setenv("NPM_CONFIG_USERCONFIG", write(t, filepath.Join(home, "npmrc"), `
registry=http://mirror.example.com:4873/npm/
@acme:registry=https://npm.acme.example/path/
//mirror.example.com:4873/npm/:_authToken=${MIRROR_TOKEN}
//npm.acme.example/path/:_auth = "dXNlcjpwYXNz"
; //commented.example/:_authToken=no
`, 0o600))
	got, err := New(Config{}).NPM(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"//mirror.example.com:4873/npm/:_authToken": "t0ken", "//npm.acme.example/path/:_auth": "dXNlcjpwYXNz", "//other.example/:_authToken": "from-env",
	}
	for k := range got.Credentials { // this machine's own may hold more
		if _, ok := want[k]; !ok {
			delete(got.Credentials, k)
		}
	}
	if d := cmp.Diff(want, got.Credentials); d != "" {
		t.Errorf("credentials (-want +got):\n%s", d)
	}
	if got.Registry != "http://mirror.example.com:4873/npm/" || got.Scopes["@acme:registry"] != "https://npm.acme.example/path/" {
		t.Errorf("registry %q, scopes %v", got.Registry, got.Scopes)
	}
	for place, header := range map[[2]string]string{
		{"mirror.example.com:4873", "/npm/a"}: "Bearer t0ken", {"mirror.example.com:4873", "/npmx/a"}: "", {"npm.acme.example", "/path/x/y"}: "Basic dXNlcjpwYXNz",
		{"elsewhere.example", "/npm/a"}: "", {"mirror.example.com", "/npm/a"}: "",
	} {
		if h := got.Authorization(place[0], place[1]); h != header {
			t.Errorf("%v: %q, not %q", place, h, header)
		}
	}
}

// An operator's mirror takes the place of the client's registry and scopes.
func TestMirrorTakesTheClientsPlace(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cfg := Config{Mirrors: map[string]string{"npm": "https://mirror.example.com/npm", "pypi": "https://mirror.example.com/simple", "go": "https://mirror.example.com/go"}}
	f := New(cfg)
	npm, err := f.NPM(t.Context())
	if err != nil || npm.Registry != cfg.Mirrors["npm"] || len(npm.Scopes) != 0 {
		t.Errorf("%+v %v", npm, err)
	}
	if pip := f.Pip(t.Context()); pip.Index != cfg.Mirrors["pypi"] {
		t.Errorf("%+v", pip)
	}
	if env := f.Go(t.Context()); env["GOPROXY"] != cfg.Mirrors["go"] {
		t.Errorf("%v", env)
	}
	for _, name := range []string{"npm", "pypi", "go"} {
		if got := f.Origins(t.Context(), []string{name})[name]; !cmp.Equal(got, []string{"https://mirror.example.com"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if _, err := New(Config{}).NPM(t.Context()); !errors.Is(err, ErrNoClient) {
		t.Errorf("nobody to ask: %v", err)
	}
}
