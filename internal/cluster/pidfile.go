package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"drtmx/internal/placement"
)

// pidFile holds a number that belongs to its data server's process for as long as the
// file is locked. A number whose lock is free may be that of any other process.
type pidFile struct {
	file *os.File
	dir  string
}

// madeFile marks a directory that a data server made, and that the last one to
// leave removes.
const madeFile = "made"

func pidPath(dir string, index placement.Server) string {
	return filepath.Join(dir, fmt.Sprintf("s%d.pid", index))
}

// takePID makes and locks a data server's pid file. It fails with ErrMember if a
// process holds it.
func takePID(dir string, index placement.Server) (*pidFile, error) {
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
			f.Close() // the former holder has removed it
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

// release removes the file. The last data server to leave removes the secret
// that they share, and the directory if a data server made it and nothing else
// is in it.
func (p *pidFile) release() {
	if p == nil {
		return
	}
	_ = withDirLocked(p.dir, func() error { // a file that stays is found again
		_ = os.Remove(p.file.Name())
		if others, err := filepath.Glob(filepath.Join(p.dir, "s*.pid")); err == nil && len(others) == 0 {
			return os.Remove(filepath.Join(p.dir, secretFile))
		}
		return nil
	})
	p.file.Close()
	entries, err := os.ReadDir(p.dir)
	if err == nil && len(entries) == 1 && entries[0].Name() == madeFile {
		_ = os.Remove(filepath.Join(p.dir, madeFile))
		_ = os.Remove(p.dir)
	}
}
