package policies

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPresetsAreWhole(t *testing.T) {
	if d := cmp.Diff([]string{"none", "public-web", "registries"}, Presets()); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
	for _, name := range Presets() {
		p, err := Loader{Registries: examples}.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Name != name || p.Egress == nil {
			t.Errorf("%s is %+v", name, p)
		}
		if len(p.Warnings) > 0 { // reviewed once, not at every start
			t.Errorf("%s warns of itself: %v", name, p.Warnings)
		}
	}
}

func TestPresetsAreFresh(t *testing.T) {
	one, err := Loader{Registries: examples}.Preset("registries")
	if err != nil {
		t.Fatal(err)
	}
	one.Egress.Allow[0].Host = "*.example.com"
	if two, err := (Loader{Registries: examples}).Preset("registries"); err != nil || two.Egress.Allow[0].Host == "*.example.com" {
		t.Errorf("a caller changed the preset: %+v, %v", two, err)
	}
}

func TestPresetNamesAreNoPaths(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../presets/none", "none.yaml", "/etc/passwd", "none\x00"} {
		if _, err := (Loader{Registries: examples}).Preset(name); !errors.Is(err, ErrNoPreset) {
			t.Errorf("Preset(%q): %v", name, err)
		}
	}
}
