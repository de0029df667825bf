package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"drtmx/rdma/shm"
)

// DefaultDir is the runtime directory of this user's cluster unless another
// one is named. Where XDG_RUNTIME_DIR is not set, another user may have made
// the directory first: every use of a runtime directory checks its owner.
func DefaultDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "drtmx")
	}
	return filepath.Join(os.TempDir(), "drtmx-"+strconv.Itoa(os.Geteuid()))
}

// Permissions that let other users add, remove and rename files.
const (
	writeOthers         = 0o002
	writeGroupAndOthers = 0o022
)

// overflowUID is, in a user namespace, the owner of files of users that have no
// number there.
const overflowUID = 65534

// checkPrivate refuses a runtime directory that another user owns or can
// write, or can replace by one of their own: any process could answer there. A
// directory that does not exist passes if no other user can make it. The error
// wraps ErrDir.
func checkPrivate(dir string) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s %s", ErrDir, dir, fmt.Sprintf(format, args...))
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDir, err)
	}
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("%w: %w", ErrDir, err)
	case st.Mode()&fs.ModeSymlink != 0:
		return bad("is a symbolic link, want a directory")
	case !st.IsDir():
		return bad("is not a directory")
	case !isTrusted(ownerOf(st)):
		return bad("belongs to uid %d, want a directory of uid %d", ownerOf(st), os.Geteuid())
	case st.Mode().Perm()&writeGroupAndOthers != 0:
		return bad("has mode %04o, want 0700: other users can write it", st.Mode().Perm())
	}
	parent := filepath.Dir(path)
	open := replaceable(parent)
	if open == "" {
		if target, err := filepath.EvalSymlinks(parent); err == nil { // else it does not exist
			open = replaceable(target)
		}
	}
	if open != "" {
		return bad("can be replaced by another user, who can write %s", open)
	}
	return nil
}

// replaceable returns the first of path and its parents in which users other
// than this one and root can replace entries that they do not own, "" if there
// is none.
func replaceable(path string) string {
	for ; ; path = filepath.Dir(path) {
		st, err := os.Lstat(path)
		if err == nil {
			sharedDir := st.IsDir() && st.Mode().Perm()&writeOthers != 0 && st.Mode()&fs.ModeSticky == 0
			if owner := ownerOf(st); sharedDir || !isTrusted(owner) && owner != overflowUID {
				return path
			}
		}
		if path == filepath.Dir(path) {
			return ""
		}
	}
}

func ownerOf(st fs.FileInfo) int { return int(st.Sys().(*syscall.Stat_t).Uid) }

// isTrusted reports whether a user could harm this process anyway.
func isTrusted(uid int) bool { return uid == 0 || uid == os.Geteuid() }

// privateListener refuses connections from processes of other users: all users can see
// the names of abstract sockets, and connect to them.
type privateListener struct{ net.Listener }

// Accept returns the next connection of this user or root.
func (l privateListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || checkPeer(c) == nil {
			return c, err
		}
		c.Close()
	}
}

// checkPeer refuses the process at the other end of a unix socket if it is not
// this user's or root's.
func checkPeer(c net.Conn) error { return shm.CheckPeer(c.(*net.UnixConn)) }
