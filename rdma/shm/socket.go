package shm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/rdma"
)

const (
	network = "unixpacket" // keeps message boundaries and reports end-of-file
	// pathBytesMax is what sockaddr_un holds beside its terminator.
	pathBytesMax = 107
	// controlTimeout bounds a handshake and the sending of any control message.
	controlTimeout = 5 * time.Second
	// filesMax bounds the descriptors of one control message.
	filesMax = 2 + MaxPollers
)

var errPeerUser = errors.New("shm: peer belongs to another user")

func checkAddress(addr string) error {
	if addr == "" || addr == "@" || len(addr) > pathBytesMax || strings.ContainsRune(addr, 0) {
		return fmt.Errorf("shm: address %q must be a socket path of 1 to %d bytes, or @ and a name: %w",
			addr, pathBytesMax, rdma.ErrAddress)
	}
	return nil
}

// listen opens the socket at addr, and replaces the socket of a dead server.
func listen(addr string) (*net.UnixListener, error) {
	if err := checkAddress(addr); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(addr, "@") {
		// Two servers may find the same stale socket. The second must not
		// remove the socket by which the first has replaced it.
		unlock, err := lockDir(filepath.Dir(addr))
		if err != nil {
			return nil, fmt.Errorf("shm: listen at %q: %w: %v", addr, rdma.ErrAddress, err)
		}
		defer unlock()
		if err := removeStale(addr); err != nil {
			return nil, err
		}
	}
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		var err error
		cerr := rc.Control(func(fd uintptr) {
			// The mode of a unix socket file is that of the socket when it is bound.
			err = unix.Fchmod(int(fd), 0o600)
		})
		return errors.Join(cerr, err)
	}}
	l, err := lc.Listen(context.Background(), network, addr)
	if err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("shm: listen at %q: a server is running there: %w", addr, rdma.ErrAddress)
		}
		return nil, fmt.Errorf("shm: listen at %q: %w: %v", addr, rdma.ErrAddress, err)
	}
	return l.(*net.UnixListener), nil
}

// lockDir keeps other servers from looking for stale sockets in dir.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		d.Close()
		return nil, err
	}
	return func() { d.Close() }, nil
}

func removeStale(addr string) error {
	st, err := os.Lstat(addr)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("shm: listen at %q: there is a file that is not a socket: %w", addr, rdma.ErrAddress)
	}
	c, err := net.DialTimeout(network, addr, controlTimeout)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("shm: listen at %q: a server is running there: %w", addr, rdma.ErrAddress)
	}
	if err := os.Remove(addr); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("shm: listen at %q: remove stale socket: %w: %v", addr, rdma.ErrAddress, err)
	}
	return nil
}

// socket is a control socket. One goroutine receives; any may send.
type socket struct {
	*net.UnixConn
}

// checkPeer refuses processes of other users, and returns the user of the peer.
func (s socket) checkPeer() (uid int, err error) { return peerUser(s) }

// CheckPeer returns an error unless the process at the other end of a unix
// socket belongs to this process's user or to root. Of a socket that listens,
// the user is the one who made it listen.
func CheckPeer(c syscall.Conn) error {
	_, err := peerUser(c)
	return err
}

func peerUser(c syscall.Conn) (uid int, err error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	cerr := rc.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(cerr, err); err != nil {
		return 0, err
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return 0, fmt.Errorf("%w: uid %d", errPeerUser, cred.Uid)
	}
	return int(cred.Uid), nil
}

// send writes a control message with descriptors, which the caller keeps.
func (s socket) send(m *message, files ...*os.File) error {
	var b [messageBytes]byte
	m.encode(&b)
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	if err := s.SetWriteDeadline(time.Now().Add(controlTimeout)); err != nil {
		return err
	}
	_, _, err := s.WriteMsgUnix(b[:], oob, nil)
	return err
}

// receive reads a control message and its descriptors, which the caller then
// owns. Without wantFiles the kernel drops the descriptors.
func (s socket) receive(wantFiles bool) (message, []*os.File, error) {
	// One byte more than a message, so that a longer one is noticed.
	var b [messageBytes + 1]byte
	var oob []byte
	if wantFiles {
		oob = make([]byte, unix.CmsgSpace(4*filesMax))
	}
	n, oobn, flags, _, err := s.ReadMsgUnix(b[:], oob)
	if err != nil {
		return message{}, nil, err
	}
	files := parseFiles(oob[:oobn])
	if wantFiles && flags&unix.MSG_CTRUNC != 0 {
		closeFiles(files)
		return message{}, nil, fmt.Errorf("%w: some of the peer's descriptors found no place here", rdma.ErrExhausted)
	}
	m, err := decodeMessage(b[:n])
	if err != nil {
		closeFiles(files)
		return message{}, nil, err
	}
	return m, files, nil
}

// parseFiles returns the descriptors in a control buffer. Package net has set
// close-on-exec.
func parseFiles(oob []byte) (files []*os.File) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
