package policies

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandboxd/sandboxd/netguard"
)

func TestPresetsAreWhole(t *testing.T) {
	if d := cmp.Diff([]string{"none", "public-web", "registries"}, Presets()); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
	for _, name := range Presets() {
		p, err := Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Name != name || p.Egress == nil {
			t.Errorf("%s is %+v", name, p)
		}
		if p.Egress.Mode == netguard.ModeAllowlist && len(p.Warnings) > 0 {
			t.Errorf("%s warns of itself: %v", name, p.Warnings)
		}
	}
}

func TestPresetsAreFresh(t *testing.T) {
	one, err := Preset("registries")
	if err != nil {
		t.Fatal(err)
	}
	one.Egress.Allow[0].Host = "*.example.com"
	if two, err := Preset("registries"); err != nil || two.Egress.Allow[0].Host == "*.example.com" {
		t.Errorf("a caller changed the preset: %+v, %v", two, err)
	}
}

func TestPresetNamesAreNoPaths(t *testing.T) {
	for _, name := range []string{"", ".", "..", "../presets/none", "none.yaml", "/etc/passwd", "none\x00"} {
		if _, err := Preset(name); !errors.Is(err, ErrNoPreset) {
			t.Errorf("Preset(%q): %v", name, err)
		}
	}
}
