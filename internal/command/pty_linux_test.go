package command

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal opens a pseudo-terminal: the end of the person who watches, and that
// of the program.
func openTerminal(t *testing.T) (watched, program *os.File) {
	t.Helper()
	watched, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	t.Cleanup(func() { watched.Close() })
	fd := int(watched.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}); err != nil {
		t.Fatal(err)
	}
	if program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return watched, program
}

// recoverOn runs drtmx serve on a data directory until it serves, and returns what
// it has written to standard error, which is a terminal or a pipe.
func recoverOn(t *testing.T, dir string, terminal bool) string {
	t.Helper()
	runtime := filepath.Join(t.TempDir(), "run")
	c := exec.Command(binary(t), "serve", "--data-dir", dir, "--runtime-dir", runtime)
	var in io.Reader
	var err error
	if terminal {
		watched, program := openTerminal(t)
		in, c.Stderr = watched, program
		defer program.Close()
	} else if in, err = c.StderrPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if f, ok := c.Stderr.(*os.File); ok {
		f.Close() // the program alone has it, so that its end is seen
	}
	read := make(chan string, 1)
	go func() {
		var all bytes.Buffer
		_, _ = io.Copy(&all, in) // the end of a terminal is an error
		read <- all.String()
	}()
	for end := time.Now().Add(patience()); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(runtime, "cluster.json")); err == nil {
			break
		}
		if time.Now().After(end) {
			_ = c.Process.Kill()
			t.Fatalf("it does not serve: %q", <-read)
		}
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	all := <-read
	_ = c.Wait()
	return all
}

// TestBarOfARecovery: a terminal shows how far a recovery is, and a pipe does not.
func TestBarOfARecovery(t *testing.T) {
	if !haveShm() {
		t.Skip("no shared memory between processes")
	}
	dir := filepath.Join(t.TempDir(), "data")
	if out, err := exec.Command(binary(t), "tpcc", "prepare", "--data-dir", dir, "--servers", "1", "--warehouses", "1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	shown := recoverOn(t, dir, true)
	if !strings.Contains(shown, "recovering") || !strings.Contains(shown, "data server 0, ") || !strings.Contains(shown, "%") {
		t.Errorf("a terminal shows no bar: %q", shown)
	}
	if _, after, ok := strings.Cut(shown, "data server 0 recovered"); !ok || strings.Contains(after, "recovering") || strings.Contains(after, "\x1b") {
		t.Errorf("the bar goes on after the recovery: %q", after)
	}
	if piped := recoverOn(t, dir, false); strings.Contains(piped, "recovering ") || strings.Contains(piped, "\x1b") {
		t.Errorf("a pipe has a bar: %q", piped)
	}
	t.Logf("%q", shown)
}
