package wasip1

import (
	"slices"
	"testing"
)

// TestRightsGivenUpStayGiven drops rights of a folder and tries what they were
// for; nothing brings them back.
func TestRightsGivenUpStayGiven(t *testing.T) {
	s := &System{files: []*file{{kind: typeDirectory, rights: rightsDir}}}
	set := func(base, inheriting uint64) Errno {
		return fdFdstatSetRights(s, memory{}, params{0, base, inheriting})
	}
	if e := s.may(needs("path_unlink_file"), params{0}); e != Success {
		t.Errorf("before: %v", e)
	}
	if e := set(rightsDir&^rightUnlink, rightsFileOnly&^rightSize); e != Success {
		t.Fatal(e)
	}
	for name, want := range map[string]Errno{"path_unlink_file": ENOTCAPABLE, "path_open": Success, "path_remove_directory": Success} {
		if e := s.may(needs(name), params{0}); e != want {
			t.Errorf("%s: %v, want %v", name, e, want)
		}
	}
	if e := set(rightsDir, rightsFileOnly&^rightSize); e != ENOTCAPABLE {
		t.Errorf("a right was taken back: %v", e)
	}
	if base, below := s.files[0].shownRights(); base&rightUnlink != 0 || below&rightSize != 0 || below&rightRead == 0 {
		t.Errorf("shown: %b and %b", base, below)
	}
}

// TestEachPathIsGuarded names no function that is not offered, and finds a need
// for every one that acts on a descriptor's files.
func TestEachPathIsGuarded(t *testing.T) {
	free := []string{"fd_close", "fd_renumber", "fd_prestat_get", "fd_prestat_dir_name", "fd_fdstat_get", "fd_fdstat_set_rights"}
	for name := range exports() {
		acts := len(name) > 3 && (name[:3] == "fd_" || len(name) > 5 && name[:5] == "path_")
		if acts && !slices.Contains(free, name) && len(needs(name)) == 0 {
			t.Errorf("%s needs no right", name)
		}
	}
}
