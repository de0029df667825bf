package cluster

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/placement"
	"drtmx/server"
)

// linked makes a link to a new directory below another one.
func linked(t *testing.T, disks, at string) {
	t.Helper()
	disk, err := os.MkdirTemp(disks, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(disk, at); err != nil {
		t.Fatal(err)
	}
}

// nothingLeft fails if there is a file below a directory.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			t.Errorf("left: %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLinkedDirectories: the directories of data servers may be links to directories
// on other disks. Their data is seen and removed, and the links stay.
func TestLinkedDirectories(t *testing.T) {
	dir, disks := t.TempDir(), t.TempDir()
	catalog, err := trialCatalog(t).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		linked(t, disks, server.ServerDir(dir, i))
	}
	for range 2 {
		for i := range 2 {
			d, err := datadir.Open(vfs.Default, server.ServerDir(dir, i), datadir.Identity{
				Incarnation: 1, Server: placement.Server(i), Servers: 2, Partitions: 2, Catalog: catalog,
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if data, err := ReadData(dir); err != nil || data == nil || data.Servers != 2 {
			t.Errorf("the data of 2 data servers is there, and %+v, %v is seen", data, err)
		}
		if n, err := RemoveData(dir); err != nil || n != 2 {
			t.Errorf("removed the data of %d data servers, %v, want 2", n, err)
		}
		nothingLeft(t, disks)
	}
	if n, err := RemoveData(dir); err != nil || n != 0 {
		t.Errorf("removed the data of %d data servers, %v, and there was none", n, err)
	}
}

// TestLinkedHosts: so may those of hosts.
func TestLinkedHosts(t *testing.T) {
	dir, disks := t.TempDir(), t.TempDir()
	for i := range 2 {
		linked(t, disks, HostDir(dir, i))
		if err := os.WriteFile(filepath.Join(HostDir(dir, i), strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := &hostsData{fs: vfs.Default, dir: dir}
	for range 2 {
		if err := h.remove(); err != nil {
			t.Fatal(err)
		}
		nothingLeft(t, disks)
	}
	for i := range 2 {
		if info, err := os.Stat(HostDir(dir, i)); err != nil || !info.IsDir() {
			t.Errorf("the link of host %d is gone: %v", i, err)
		}
	}
}
