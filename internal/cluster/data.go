package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/internal/placement"
	"drtmx/server"
	"drtmx/tables"
)

// ErrData reports a data directory that cannot be used. Its text has the reason.
var ErrData = errors.New("cluster: data directory")

// Data describes the cluster whose data a data directory has.
type Data struct {
	Servers, Partitions int
	// Replicas is how many copies of each data server's data there are, its own
	// included; 0 if there never were copies.
	Replicas int
	// Hosts reports the directory of a cluster of hosts: see Hosts.
	Hosts bool
	// Catalog is the one with which the directory was made; nil if no data server's was.
	Catalog *tables.Catalog
}

// ReadData reads what a data directory has, nil if it has no data. It changes
// nothing, and the cluster may run meanwhile. The error wraps ErrData, or is one
// of package datadir.
func ReadData(dir string) (*Data, error) {
	if err := datadir.Finished(vfs.Default, dir); err != nil {
		return nil, err
	}
	if s, ok, err := readHosts(dir); err != nil || ok {
		if err != nil {
			return nil, err
		}
		return s.data(dir)
	}
	dirs, err := serverDirs(dir)
	if err != nil {
		return nil, err
	}
	var first *datadir.Identity
	for _, d := range dirs {
		id, ok, err := datadir.Read(vfs.Default, d)
		if err != nil {
			return nil, err
		}
		if ok && first == nil {
			first = id
		}
	}
	if first == nil {
		return nil, nil
	}
	for i := range first.Servers {
		id, ok, err := datadir.Read(vfs.Default, server.ServerDir(dir, i))
		switch {
		case err != nil:
			return nil, err
		case !ok:
			return nil, fmt.Errorf("%w %s: data server %d has no identity there: its data is lost, or the first start did not end; remove the directory to begin anew", ErrData, dir, i)
		case id.Servers != first.Servers || id.Partitions != first.Partitions:
			return nil, fmt.Errorf("%w %s: data server %d is of %d with %d partitions, another one there of %d with %d",
				ErrData, dir, i, id.Servers, id.Partitions, first.Servers, first.Partitions)
		}
	}
	c, err := tables.ParseCatalog(first.Catalog)
	if err != nil {
		return nil, fmt.Errorf("%w %s: its catalogue: %w", ErrData, dir, err)
	}
	n, err := server.FileReplicas(vfs.Default, dir, first.Servers)
	if err != nil {
		return nil, err
	}
	return &Data{Servers: first.Servers, Partitions: first.Partitions, Replicas: n, Catalog: c}, nil
}

var serverDirName = regexp.MustCompile(`^server-\d+$`)

// serverDirs returns the directories of data servers in a data directory.
func serverDirs(dir string) (all []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w %s: %w", ErrData, dir, err)
	}
	for _, e := range entries {
		if !serverDirName.MatchString(e.Name()) {
			continue
		}
		at := filepath.Join(dir, e.Name())
		info, err := os.Stat(at) // it may be a link to a directory on another disk
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w %s: %w", ErrData, dir, err)
		}
		if err == nil && info.IsDir() {
			all = append(all, at)
		}
	}
	return all, nil
}

// RemoveData removes the data of all data servers from a data directory, and
// returns how many had some. It leaves everything else there. It fails with
// datadir.ErrInUse, and removes nothing, if a data server has its directory open.
func RemoveData(dir string) (servers int, err error) {
	all, err := serverDirs(dir)
	if err != nil {
		return 0, err
	}
	for i, d := range slices.Backward(all) {
		if _, ok, err := datadir.Read(vfs.Default, d); err == nil && !ok {
			if left, err := os.ReadDir(d); err == nil && len(left) == 0 { // empty: a mount or a link that stayed when its data was removed
				all = slices.Delete(all, i, i+1)
				continue
			}
			return 0, fmt.Errorf("%w %s: %s is not a data server's", ErrData, dir, filepath.Base(d))
		}
		unlock, err := datadir.Lock(vfs.Default, d)
		if err != nil {
			return 0, err
		}
		defer unlock.Close()
	}
	if err := server.RemoveFileSets(vfs.Default, dir); err != nil {
		return 0, fmt.Errorf("%w %s: %w", ErrData, dir, err)
	}
	for _, d := range all {
		if err := removeDir(d); err != nil {
			return 0, fmt.Errorf("%w %s: %w", ErrData, dir, err)
		}
	}
	return len(all), nil
}

// ServerDir is the data directory of a data server.
type ServerDir struct {
	Server placement.Server
	Path   string
}

// Dirs returns the directories of the data servers in a data directory, in the order of
// the servers. In a cluster of hosts, one server may have several: those of hosts where
// it was before.
func (d *Data) Dirs(dir string) ([]ServerDir, error) {
	var all []ServerDir
	if !d.Hosts {
		for i := range d.Servers {
			all = append(all, ServerDir{placement.Server(i), server.ServerDir(dir, i)})
		}
		return all, nil
	}
	for _, under := range []string{"host-*", filepath.Join("host-*", "server-*", "homes")} {
		found, err := filepath.Glob(filepath.Join(dir, under, "server-*"))
		if err != nil {
			return nil, fmt.Errorf("%w %s: %w", ErrData, dir, err)
		}
		for _, path := range found {
			id, ok, err := datadir.Read(vfs.Default, path)
			if err != nil {
				return nil, err
			}
			if ok && serverDirName.MatchString(filepath.Base(path)) {
				all = append(all, ServerDir{id.Server, path})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b ServerDir) int { return int(a.Server - b.Server) })
	return all, nil
}

// StoredDir is a directory of a data server's data, or of a copy of it.
type StoredDir struct {
	ServerDir
	// Locked is the directory that is locked while its host, or its data server, runs.
	Locked string
	Copy   bool
}

// Stored returns all directories with data or copies in the data directory of a
// cluster, or of one host, in the order of the servers; none if there is no data. It
// changes nothing.
func Stored(dir string) (all []StoredDir, err error) {
	if err := datadir.Finished(vfs.Default, dir); err != nil {
		return nil, err
	}
	shape, hosts, err := readHosts(dir)
	if err != nil || shape.Removing {
		return nil, err
	}
	patterns := []string{"server-*", "server-*/homes/server-*"}
	copies := []string{"server-*/copies/server-*", "keeper-*/copies/server-*"}
	if !hosts {
		placed, err := isHost(dir)
		if err != nil {
			return nil, err
		}
		if !placed {
			if d, err := ReadData(dir); err != nil || d == nil { // fails if not all of them are there
				return nil, err
			}
		}
	}
	for _, find := range []struct {
		patterns []string
		copies   bool
	}{{patterns, false}, {copies, true}} {
		for _, pattern := range find.patterns {
			if hosts {
				pattern = filepath.Join("host-*", pattern)
			}
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return nil, fmt.Errorf("%w %s: %w", ErrData, dir, err)
			}
			for _, path := range found {
				var index placement.Server
				if !serverDirName.MatchString(filepath.Base(path)) {
					continue
				}
				if _, err := fmt.Sscanf(filepath.Base(path), "server-%d", &index); err != nil {
					return nil, fmt.Errorf("%w %s: %w", ErrData, path, err)
				}
				d := StoredDir{ServerDir: ServerDir{index, path}, Locked: path, Copy: find.copies}
				if d.Copy {
					d.Locked = filepath.Dir(filepath.Dir(path))
				} else if _, ok, err := datadir.Read(vfs.Default, path); err != nil || !ok {
					if err != nil {
						return nil, err
					}
					continue // nothing was stored there yet
				}
				all = append(all, d)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b StoredDir) int { return int(a.Server - b.Server) })
	return all, nil
}

// isHost reports whether a data directory is that of a host which was started by itself:
// a data server in it has a place in a store of members. Other servers are elsewhere.
func isHost(dir string) (bool, error) {
	all, err := serverDirs(dir)
	if err != nil {
		return false, err
	}
	for _, d := range all {
		if p, err := datadir.ReadPlace(vfs.Default, d); err != nil || p != (datadir.Place{}) {
			return err == nil, err
		}
	}
	return false, nil
}

// removeDir removes a directory. A mount, or a link to a directory, stays, and is
// emptied.
func removeDir(d string) error {
	entries, err := os.ReadDir(d)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(d, e.Name())); err != nil {
			return err
		}
	}
	if info, err := os.Lstat(d); err != nil || !info.IsDir() {
		return err
	}
	if err := os.Remove(d); err != nil && !errors.Is(err, syscall.EBUSY) {
		return err
	}
	return nil
}
