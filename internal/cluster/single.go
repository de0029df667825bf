package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"drtmx/rdma"
)

// MemoryMin is the least memory a partition is given.
const MemoryMin = 64 << 20

// ErrMember reports a data server that runs already.
var ErrMember = errors.New("cluster: data server runs already")

// ServerOptions describe one data server of a cluster whose others are
// processes of their own, here or on other hosts.
type ServerOptions struct {
	Size
	Index int
	// Addrs are the addresses of all data servers, in order: see MemberAddrs.
	Addrs []string
	// Joined, if set, is its place among the members, by which it finds the
	// others where they are; Addrs are then the place's.
	Joined *Joined
	// Dir, if set, is where its socket and its pid file are; it is made if it
	// does not exist, and shared with other data servers.
	Dir      string
	Provider rdma.Provider
	Workload Workload
	// MemoryBytes bounds the memory of its partitions together; 0 means the
	// server package's bound for each.
	MemoryBytes uint64
}

// Hosted is how many partitions the data server has.
func (o *ServerOptions) Hosted() int { return (o.Partitions - o.Index + o.Servers - 1) / o.Servers }

// check reports all faults of the options.
func (o *ServerOptions) check() error {
	if err := o.Size.check(); err != nil {
		return err
	}
	var errs []error
	if o.Index < 0 || o.Index >= o.Servers {
		errs = append(errs, fmt.Errorf("%w: data server %d of %d, want 0 to %d", ErrOptions, o.Index, o.Servers, o.Servers-1))
	}
	if len(o.Addrs) != o.Servers {
		errs = append(errs, fmt.Errorf("%w: %d addresses for %d data servers", ErrOptions, len(o.Addrs), o.Servers))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if need := uint64(o.Hosted()) * MemoryMin; o.MemoryBytes != 0 && o.MemoryBytes < need {
		return fmt.Errorf("%w: %d MiB of memory, want at least %d MiB: %d for each of the %d partitions of data server %d",
			ErrOptions, o.MemoryBytes>>20, need>>20, MemoryMin>>20, o.Hosted(), o.Index)
	}
	return nil
}

// Single is a data server that runs. Close may be called again.
type Single struct {
	server dataServer
	pid    *pidFile // nil without a directory
	once   sync.Once
	err    error
}

// StartServer starts one data server in this process. ErrMember if it runs in
// its directory already.
func StartServer(ctx context.Context, o ServerOptions) (*Single, error) {
	if j := o.Joined; j != nil {
		o.Addrs, o.Workload.Incarnation = j.addrs, uint64(j.self.Instance)
		if f, ok := o.Provider.(*Fabrics); ok {
			f.resolve = j.follows.resolve
		}
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	s := &Single{}
	if o.Dir != "" {
		if len(o.Dir) > maxDirBytes {
			return nil, fmt.Errorf("%w: %s has %d bytes; with sockets in it, at most %d fit", ErrDir, o.Dir, len(o.Dir), maxDirBytes)
		}
		var err error
		if s.pid, err = takePID(o.Dir, o.Index); err != nil {
			return nil, err
		}
	}
	if o.MemoryBytes != 0 {
		o.Size.PartitionBytes = o.MemoryBytes / uint64(o.Hosted())
	}
	var err error
	if s.server, err = startServer(ctx, o.Provider, o.Workload, o.Size, o.Index, o.Addrs); err != nil {
		s.pid.release()
		return nil, fmt.Errorf("%w: server %d: %w", ErrStart, o.Index, err)
	}
	return s, nil
}

// Close stops the data server, but does not wait for it for ever, and removes
// its files.
func (s *Single) Close() error {
	s.once.Do(func() {
		s.err = closeWithin(s.server, closeTimeout)
		s.pid.release()
	})
	return s.err
}

// pidFile is held, by a lock, for as long as its data server's process lives,
// so a number in it that some other process has by now fools nobody.
type pidFile struct {
	file *os.File
	dir  string
}

// madeFile marks a directory that a data server made, and that the last one to
// leave removes.
const madeFile = "made"

func pidPath(dir string, index int) string { return filepath.Join(dir, fmt.Sprintf("s%d.pid", index)) }

// takePID makes a data server's pid file and holds it.
func takePID(dir string, index int) (*pidFile, error) {
	p := &pidFile{dir: dir}
	path := pidPath(dir, index)
	for try := 0; ; try++ {
		if err := checkPrivate(dir); err != nil { // before anything is made there
			return nil, err
		}
		if err := makeDir(dir); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDir, err)
		}
		if err := checkPrivate(dir); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrNotExist) && try < 100 {
			continue // others have just left the directory
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDir, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			return nil, fmt.Errorf("%w: data server %d in %s", ErrMember, index, dir)
		}
		held, err1 := f.Stat()
		named, err2 := os.Stat(path)
		if err1 != nil || err2 != nil || !os.SameFile(held, named) {
			f.Close() // it was removed by the one who had it
			continue
		}
		p.file = f
		err = f.Truncate(0)
		if err == nil {
			_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		}
		if err != nil {
			p.release()
			return nil, fmt.Errorf("%w: %w", ErrDir, err)
		}
		return p, nil
	}
}

// makeDir makes a directory and marks it as made, if it is not there.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(dir), 0o700); err == nil {
			err = os.Mkdir(dir, 0o700)
		}
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, madeFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// release removes the file, and the directory if a data server made it and
// nothing else is in it.
func (p *pidFile) release() {
	if p == nil {
		return
	}
	_ = os.Remove(p.file.Name())
	p.file.Close()
	entries, err := os.ReadDir(p.dir)
	if err == nil && len(entries) == 1 && entries[0].Name() == madeFile {
		_ = os.Remove(filepath.Join(p.dir, madeFile))
		_ = os.Remove(p.dir)
	}
}
