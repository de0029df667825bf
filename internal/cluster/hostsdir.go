package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/datadir"
	"drtmx/server"
	"drtmx/tables"
)

// The data directory of a cluster of hosts has:
//
//	HOSTS          the shape of the cluster
//	etcd           the data of the store of members
//	host-N         the data directory of host N, with server-M for each data
//	               server that it has or had
const (
	hostsFile    = "HOSTS"
	membersDir   = "etcd"
	hostsVersion = 1
)

var hostDirName = regexp.MustCompile(`^host-\d+$`)

// hostsShape is the content of HOSTS.
type hostsShape struct {
	Format     int  `json:"format"`
	Servers    int  `json:"servers"`
	Partitions int  `json:"partitions"`
	Replicas   int  `json:"replicas"`
	Removing   bool `json:"removing,omitempty"` // the data is being removed: what is left is not to be used
	Started    bool `json:"started,omitempty"`  // all hosts have served: each has its place
	Moving     bool `json:"moving,omitempty"`   // data servers without hosts are made hosts: see adopt
}

// HostDir is the data directory of a host in that of its cluster.
func HostDir(dir string, host int) string { return filepath.Join(dir, fmt.Sprintf("host-%d", host)) }

// MembersDir is the directory of the store of members in the data directory of a
// cluster of hosts.
func MembersDir(dir string) string { return filepath.Join(dir, membersDir) }

// readHosts returns the shape of a cluster of hosts; ok is false if the directory
// is not that of one.
func readHosts(dir string) (s hostsShape, ok bool, err error) {
	ok, err = datadir.ReadJSON(vfs.Default, dir, hostsFile, &s)
	if err == nil && ok && s.Format != hostsVersion {
		err = fmt.Errorf("%w %s: %s has format %d, this drtmx reads format %d", ErrData, dir, hostsFile, s.Format, hostsVersion)
	}
	return s, ok, err
}

// data describes the cluster whose data the directory has.
func (s *hostsShape) data(dir string) (*Data, error) {
	d := &Data{Servers: s.Servers, Partitions: s.Partitions, Replicas: s.Replicas, Hosts: true}
	if s.Removing {
		return d, nil
	}
	homes := []string{dir} // where data servers are before they are made hosts
	for i := range s.Servers {
		homes = append(homes, HostDir(dir, i))
	}
	for _, home := range homes {
		all, err := serverDirs(home)
		if err != nil {
			return nil, err
		}
		for _, server := range all {
			id, ok, err := datadir.Read(vfs.Default, server)
			if err != nil {
				return nil, err
			}
			if !ok || d.Catalog != nil {
				continue
			}
			if d.Catalog, err = tables.ParseCatalog(id.Catalog); err != nil {
				return nil, fmt.Errorf("%w %s: its catalogue: %w", ErrData, dir, err)
			}
		}
	}
	return d, nil
}

// hostsData is the data directory of a cluster of hosts, held by this process.
type hostsData struct {
	fs    vfs.FS
	dir   string
	shape hostsShape
	lock  io.Closer
}

// openHosts takes the data directory of a cluster of hosts, and makes it if there
// is none. The error wraps ErrData or one of package datadir.
func openHosts(size Size) (h *hostsData, err error) {
	if err := datadir.Finished(vfs.Default, size.DataDir); err != nil {
		return nil, err
	}
	h = &hostsData{fs: vfs.Default, dir: size.DataDir, shape: hostsShape{
		Format: hostsVersion, Servers: size.Servers, Partitions: size.Partitions, Replicas: size.Replicas,
	}}
	if err := datadir.MakeDir(vfs.Default, h.dir); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrData, h.dir, err)
	}
	if h.lock, err = datadir.Lock(vfs.Default, h.dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h, err = nil, errors.Join(err, h.close())
		}
	}()
	was, ok, err := readHosts(h.dir)
	h.shape.Started = ok && was.Started && !was.Removing
	switch {
	case err != nil:
		return h, err
	case ok && was.Removing:
		return h, h.remove()
	case ok && was.Moving:
		h.shape = was
		return h, h.adopt()
	case ok && was != h.shape:
		return h, fmt.Errorf("%w %s: it is of %d data servers with %d partitions and %d replicas, not of %d with %d and %d",
			ErrData, h.dir, was.Servers, was.Partitions, was.Replicas, h.shape.Servers, h.shape.Partitions, h.shape.Replicas)
	case ok:
		return h, nil
	}
	if all, err := serverDirs(h.dir); err != nil || len(all) > 0 {
		if err == nil {
			err = h.adopt()
		}
		return h, err
	}
	return h, datadir.WriteJSON(vfs.Default, h.dir, hostsFile, h.shape)
}

// adopt makes data servers that had no copies hosts: it moves their directories into
// those of hosts. It continues where it was interrupted.
func (h *hostsData) adopt() error {
	fs := vfs.Default
	all, err := serverDirs(h.dir)
	if err != nil {
		return err
	}
	for _, d := range all {
		lock, err := datadir.Lock(fs, d)
		if err != nil {
			return err
		}
		defer lock.Close()
	}
	h.shape.Moving = true
	if err := datadir.WriteJSON(fs, h.dir, hostsFile, h.shape); err != nil {
		return err
	}
	for i := range h.shape.Servers {
		from := server.ServerDir(h.dir, i)
		if _, err := os.Lstat(from); errors.Is(err, os.ErrNotExist) {
			continue // moved before
		}
		if err := datadir.MakeDir(fs, HostDir(h.dir, i)); err != nil {
			return fmt.Errorf("%w %s: %w", ErrData, h.dir, err)
		}
		if err := moveDir(from, server.ServerDir(HostDir(h.dir, i), i)); err != nil {
			return fmt.Errorf("%w %s: data server %d cannot be made a host: %w", ErrData, h.dir, i, err)
		}
	}
	h.shape.Moving = false
	return datadir.WriteJSON(fs, h.dir, hostsFile, h.shape)
}

// moveDir renames a directory, durably.
func moveDir(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return errors.Join(datadir.SyncDir(vfs.Default, filepath.Dir(to)), datadir.SyncDir(vfs.Default, filepath.Dir(from)))
}

// started records that all hosts have served.
func (h *hostsData) started() error {
	if h.shape.Started {
		return nil
	}
	h.shape.Started = true
	return datadir.WriteJSON(vfs.Default, h.dir, hostsFile, h.shape)
}

// close releases the directory.
func (h *hostsData) close() error {
	if h == nil {
		return nil
	}
	return h.lock.Close()
}

// remove removes the data of all hosts, and what the store of members knows of it:
// neither is of use without the other. If it is interrupted, the next call continues:
// the mark is removed last, when nothing that was removed can come back after a crash.
func (h *hostsData) remove() error {
	h.shape.Started = false
	marked := h.shape
	marked.Removing = true
	if err := datadir.WriteJSON(h.fs, h.dir, hostsFile, marked); err != nil {
		return err
	}
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return fmt.Errorf("%w %s: %w", ErrData, h.dir, err)
	}
	for _, e := range entries {
		if e.Name() == membersDir || hostDirName.MatchString(e.Name()) {
			if err := removeDir(filepath.Join(h.dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%w %s: %w", ErrData, h.dir, err)
			}
			if there, err := exists(h.fs, filepath.Join(h.dir, e.Name())); err != nil || !there {
				continue
			}
			if err := datadir.SyncDir(h.fs, filepath.Join(h.dir, e.Name())); err != nil { // a mount or a link, which stays
				return fmt.Errorf("%w %s: %w", ErrData, h.dir, err)
			}
		}
	}
	if err := datadir.SyncDir(h.fs, h.dir); err != nil {
		return fmt.Errorf("%w %s: %w", ErrData, h.dir, err)
	}
	return datadir.WriteJSON(h.fs, h.dir, hostsFile, h.shape)
}
