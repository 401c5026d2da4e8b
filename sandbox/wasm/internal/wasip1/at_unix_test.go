//go:build unix

package wasip1

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLinkTimesStayInside: the times of a link are its own, also where a slash
// after its name asks for what it leads to.
func TestLinkTimesStayInside(t *testing.T) {
	base := t.TempDir()
	inside, outside := filepath.Join(base, "inside"), filepath.Join(base, "outside")
	for _, d := range []string{inside, outside} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../outside", filepath.Join(inside, "link")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(inside)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	for _, name := range []string{"link", "link/", "link//"} {
		_ = setLinkTimes(root, name, 1, 1)
	}
	if st, err := os.Stat(outside); err != nil || st.ModTime().Year() < 2000 {
		t.Errorf("%v, %v", st.ModTime(), err)
	}
}
