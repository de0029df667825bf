package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/member"
	"drtmx/rdma/multi"
)

// Format is the version of a runtime directory and of the messages between the
// processes of a cluster. Other formats are refused.
const Format = 1

var (
	// ErrDir reports a directory that cannot serve as a runtime directory.
	ErrDir = errors.New("cluster: bad runtime directory")
	// ErrVersion reports a runtime directory of another format.
	ErrVersion = errors.New("cluster: runtime directory of another version")
	// ErrNoCluster reports a directory in which no cluster runs.
	ErrNoCluster = errors.New("cluster: no cluster runs")
	// ErrStale reports a directory with the files of a dead cluster.
	ErrStale = errors.New("cluster: dead cluster")
	// ErrBusy reports a directory in which a cluster runs already.
	ErrBusy = errors.New("cluster: a cluster runs already")
)

// Files of a runtime directory.
const (
	infoFile    = "cluster.json"
	controlFile = "control.sock"
	lockFile    = "lock"
)

// dirBytesMax leaves room for the longest socket name in a socket address: that of a
// server at another host than its own.
const dirBytesMax = 107 - len("/s255.sock-255")

var ownFiles = regexp.MustCompile(`^(cluster\.json(\.tmp)?|control\.sock|lock|s\d+\.sock(-\d+)?)$`)

// Info describes a running cluster to processes that attach to it. It is the
// content of cluster.json.
type Info struct {
	Format     int              `json:"format"`
	Version    string           `json:"version"` // of the binary that serves
	Fabric     string           `json:"fabric"`
	Workload   string           `json:"workload"`
	Partitions int              `json:"partitions"`
	DataDir    string           `json:"data_dir,omitempty"` // of durable data servers
	Servers    []ServerInfo     `json:"servers"`
	Members    *member.Location `json:"members,omitempty"` // of hosts: where they find each other
	Supervisor int              `json:"supervisor"`        // process that serves the directory
	Generation int              `json:"generation"`        // grows whenever the cluster is emptied
	Started    time.Time        `json:"started"`
}

// ServerInfo is one data server.
type ServerInfo struct {
	Socket string `json:"socket,omitempty"` // file in the directory
	Addr   string `json:"addr,omitempty"`   // network address
	Verbs  string `json:"verbs,omitempty"`  // address of an RDMA device
	PID    int    `json:"pid"`              // 0: none runs
	State  string `json:"state,omitempty"`  // of a host: HostRuns or another one
}

// Address returns where the data server of the cluster in dir listens: a multi.Address,
// or the address of the only fabric.
func (s ServerInfo) Address(dir string) string {
	o := s.offers(dir)
	switch {
	case o == multi.Address{TCP: s.Addr}:
		return o.TCP
	case o == multi.Address{Verbs: s.Verbs}:
		return o.Verbs
	case s.Addr == "" && s.Verbs == "":
		return o.Shm
	}
	return o.String()
}

// offers returns the endpoints of the data server of the cluster in dir.
func (s ServerInfo) offers(dir string) multi.Address {
	o := multi.Address{TCP: s.Addr, Verbs: s.Verbs}
	if s.Socket != "" {
		o.Shm = filepath.Join(dir, filepath.Base(s.Socket))
	}
	return o
}

// readInfo reads cluster.json: ErrNoCluster if there is none, ErrVersion for
// one of another format.
func readInfo(dir string) (*Info, error) {
	if err := checkPrivate(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, infoFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNoCluster, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDir, err)
	}
	return decodeInfo(path, b)
}

// decodeInfo decodes the content of cluster.json. It looks at the format first: other
// formats may differ in all else.
func decodeInfo(path string, b []byte) (*Info, error) {
	var f struct {
		Format *int `json:"format"`
	}
	if err := json.Unmarshal(b, &f); err != nil || f.Format == nil {
		return nil, fmt.Errorf("%w: %s is not a cluster description; remove it if nothing needs it", ErrDir, path)
	}
	if *f.Format != Format {
		return nil, fmt.Errorf("%w: %s has format %d, this drtmx reads format %d", ErrVersion, path, *f.Format, Format)
	}
	var info Info
	if err := json.Unmarshal(b, &info); err != nil || len(info.Servers) == 0 || len(info.Servers) > MaxServers {
		return nil, fmt.Errorf("%w: %s is damaged; remove it if nothing needs it", ErrDir, path)
	}
	return &info, nil
}

// writeInfo replaces cluster.json as a whole, so that readers never see a part.
func writeInfo(dir string, info *Info) error {
	b, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, infoFile)
	if err := os.WriteFile(path+".tmp", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	return nil
}

// runtimeDir is a directory held by this process.
type runtimeDir struct {
	path string
	lock *os.File
	made bool
}

// openDir locks a runtime directory. It makes the directory if it does not
// exist, and removes the files of a dead cluster. It returns ErrBusy if a live
// cluster has the directory, and waits for one that dies until ctx ends.
func openDir(ctx context.Context, path string) (*runtimeDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDir, err)
	}
	for tries := 1; ; tries++ {
		d, err := openOnce(ctx, path)
		gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) // a cluster that ended has removed it just now
		if !gone || ctx.Err() != nil || tries == openTries {
			return d, err
		}
	}
}

// openTries bounds the tries of openDir. Each but the first has met another cluster's end.
const openTries = 1000

func openOnce(ctx context.Context, path string) (*runtimeDir, error) {
	if len(path) > dirBytesMax {
		return nil, fmt.Errorf("%w: %s has %d bytes; with sockets in it, at most %d fit", ErrDir, path, len(path), dirBytesMax)
	}
	if err := checkPrivate(path); err != nil { // before anything is made there
		return nil, err
	}
	d := &runtimeDir{path: path}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		d.made = true
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDir, err)
	}
	if err := checkPrivate(path); err != nil {
		return nil, err
	}
	if err := d.vet(); err != nil {
		return nil, err
	}
	if err := d.takeSoon(ctx); err != nil {
		return nil, err
	}
	d.clear()
	return d, nil
}

// A process that was killed closes its files one after the other, so its lock may be
// held although nothing answers at its socket any more. dyingTime is longer than that
// takes.
const dyingTime = 5 * time.Second

// takeSoon locks the directory. It waits for a holder that is dying, and fails with
// ErrBusy at once if the holder answers.
func (d *runtimeDir) takeSoon(ctx context.Context) error {
	for end := time.Now().Add(dyingTime); ; {
		if err := d.take(); !errors.Is(err, ErrBusy) || d.listens() || !time.Now().Before(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// listens reports whether a process listens at the control socket.
func (d *runtimeDir) listens() bool {
	c, err := net.DialTimeout("unix", filepath.Join(d.path, controlFile), controlTimeout)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// vet refuses directories that hold anything else, or another version.
func (d *runtimeDir) vet() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	for _, e := range entries {
		if !ownFiles.MatchString(e.Name()) && !d.isStore(e) {
			return fmt.Errorf("%w: %s holds %s, which is not a cluster's; name an empty or a new directory",
				ErrDir, d.path, e.Name())
		}
	}
	if _, err := readInfo(d.path); err != nil && !errors.Is(err, ErrNoCluster) {
		return err
	}
	return nil
}

// isStore reports whether an entry is the directory of the store of members, which
// holds its socket and nothing else.
func (d *runtimeDir) isStore(e fs.DirEntry) bool {
	if e.Name() != storeDir || !e.IsDir() {
		return false
	}
	in, err := os.ReadDir(filepath.Join(d.path, storeDir))
	return err == nil && !slices.ContainsFunc(in, func(e fs.DirEntry) bool { return e.Name() != storeSocket })
}

// take locks the directory. The lock is on a file, which is removed at the
// end: one that was locked after its removal does not count.
func (d *runtimeDir) take() error {
	path := filepath.Join(d.path, lockFile)
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDir, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			return fmt.Errorf("%w in %s", ErrBusy, d.path)
		}
		held, err1 := f.Stat()
		named, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(held, named) {
			d.lock = f
			return nil
		}
		f.Close()
	}
}

// clear removes all of a cluster's files but the lock.
func (d *runtimeDir) clear() {
	entries, _ := os.ReadDir(d.path)
	for _, e := range entries {
		if ownFiles.MatchString(e.Name()) && e.Name() != lockFile {
			_ = os.Remove(filepath.Join(d.path, e.Name())) // a file that stays is found stale again
		}
		if d.isStore(e) {
			_ = os.Remove(filepath.Join(d.path, storeDir, storeSocket))
			_ = os.Remove(filepath.Join(d.path, storeDir))
		}
	}
}

// close removes the files, and the directory if this process made it, and
// gives the directory up.
func (d *runtimeDir) close() {
	d.clear()
	_ = os.Remove(filepath.Join(d.path, lockFile))
	d.lock.Close()
	if d.made {
		_ = os.Remove(d.path)
	}
}

// Clear removes the files of a dead cluster from dir. It fails with ErrBusy if
// the cluster lives, and with ErrNoCluster if nothing is there. A cluster that is
// dying is waited for, until ctx ends.
func Clear(ctx context.Context, dir string) error {
	if err := checkPrivate(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return fmt.Errorf("%w in %s", ErrNoCluster, dir)
	}
	d, err := openDir(ctx, dir)
	if err != nil {
		return err
	}
	d.close()
	return nil
}
