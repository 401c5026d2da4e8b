package registries

import (
	"context"
	"regexp"
	"strings"
)

// Pip is pip's configuration, as far as another pip needs it to fetch what this
// host's would. Its URLs can hold credentials.
type Pip struct {
	Index  string   // empty means pip's own
	Extra  []string // further indexes
	Links  []string // find-links: folders and URLs
	NoIdx  bool     // only Links
	Trust  []string // hosts whose certificates are not checked
	CAFile string
}

// pipSetting is one line of `pip config list`.
var pipSetting = regexp.MustCompile(`^(:env:|global|download)\.(index-url|extra-index-url|find-links|no-index|trusted-host|cert)=(['"])(.*)['"]$`)

// Pip asks pip for its configuration, under the operator's index where pip is
// not installed. A variable overrides the files.
func (f *Finder) Pip(ctx context.Context) Pip {
	out, _ := f.run(ctx, []string{"PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INPUT=1"}, "python3", "-m", "pip", "config", "list")
	set := map[string]string{}
	fromEnv := map[string]bool{}
	for line := range lines(out) {
		m := pipSetting.FindStringSubmatch(line)
		if m == nil || fromEnv[m[2]] {
			continue
		}
		fromEnv[m[2]] = m[1] == ":env:"
		set[m[2]] = strings.NewReplacer(`\n`, " ", `\t`, " ", `\r`, " ").Replace(m[4])
	}
	pip := Pip{
		Index: strings.TrimSpace(set["index-url"]), Extra: strings.Fields(set["extra-index-url"]), Links: strings.Fields(set["find-links"]),
		Trust: strings.Fields(set["trusted-host"]), CAFile: set["cert"],
	}
	switch strings.ToLower(set["no-index"]) {
	case "1", "true", "yes", "on":
		pip.NoIdx = true
	}
	if mirror := f.mirrors["pypi"]; mirror != "" {
		pip.Index, pip.Extra, pip.NoIdx = mirror, nil, false
	}
	if more := f.uv(); pip.Index == "" && len(more) > 0 {
		pip.Index = more[0]
	}
	if own := f.urls["pypi"]; pip.Index == "" && len(own) > 0 {
		pip.Index = own[0]
	}
	return pip
}
