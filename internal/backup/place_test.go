package backup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drtmx/internal/datadir"
	"drtmx/server"
)

// plainBackup makes a backup of a cluster that nobody writes to.
func plainBackup(t *testing.T) (dir string) {
	t.Helper()
	w := openWorld(t, t.TempDir(), 1, 1, nil)
	defer w.cl.Close()
	w.load()
	dir = filepath.Join(t.TempDir(), "backup")
	if _, err := Run(t.Context(), w.options(dir)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// opens checks that a directory has what was restored.
func opens(t *testing.T, dir string) {
	t.Helper()
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{Servers: 1, Durability: server.Disk, Dir: dir})
	if err != nil {
		t.Error(err)
		return
	}
	defer cl.Close()
	checkState(t, cl.DB)
}

// TestRestoreTakesThePlace: a restore may be into a directory that is there and empty,
// and into one that a link leads to. Whatever cannot be replaced is refused before the
// work.
func TestRestoreTakesThePlace(t *testing.T) {
	from, top := plainBackup(t), t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(at("empty"), 0o755))
	must(os.Mkdir(at("elsewhere"), 0o755))
	must(os.Symlink(at("elsewhere"), at("link")))
	must(os.Symlink(at("nowhere"), at("dangling")))
	must(os.WriteFile(at("file"), nil, 0o600))
	for _, name := range []string{"empty", "link", "new/below"} {
		if _, err := Restore(t.Context(), RestoreOptions{From: from, Dir: at(name)}); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		opens(t, at(name))
	}
	if st, err := os.Lstat(at("link")); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", st, err)
	}
	for name, want := range map[string]string{"file": "file is a file", "dangling": "is a link that leads nowhere", "file/below": "below is below a file"} {
		_, err := Restore(t.Context(), RestoreOptions{From: from, Dir: at(name)})
		if !errors.Is(err, datadir.ErrNotDir) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if _, err := os.Stat(at(name) + datadir.Restoring); err == nil {
			t.Errorf("%s: something is left", name)
		}
	}
}

// TestRestoreKeepsWhatIsComplete: if somebody has used the name meanwhile, what was
// restored stays beside, complete, and the error says where.
func TestRestoreKeepsWhatIsComplete(t *testing.T) {
	from, dir := plainBackup(t), filepath.Join(t.TempDir(), "d")
	o := RestoreOptions{From: from, Dir: dir}
	o.Progress = func(Progress) {
		if err := os.MkdirAll(filepath.Join(dir, "theirs"), 0o755); err != nil {
			t.Error(err)
		}
	}
	_, err := Restore(t.Context(), o)
	if want := "complete in " + dir + datadir.Restoring; !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), want) {
		t.Fatalf("%v, want %q", err, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "theirs")); err != nil {
		t.Error(err)
	}
	if err := os.Rename(dir+datadir.Restoring, dir+"2"); err != nil {
		t.Fatal(err)
	}
	opens(t, dir+"2")
}
