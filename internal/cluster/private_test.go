package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"drtmx/internal/member"
	"drtmx/rdma/multi"
)

// mallory is a user who is neither the test's nor root.
const mallory = 4242

// impostorMain is a process of another user that poses as a cluster in dir,
// which it makes unless it is there: it describes one data server, at addr, and
// prints a line for each connection to its control socket.
func impostorMain(dir, addr string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	}
	if err := os.Mkdir(dir, 0o755); !errors.Is(err, os.ErrExist) {
		fail(err)
	}
	info := Info{
		Format: Format, Fabric: multi.TCP, Workload: "fine", Partitions: 1, Supervisor: os.Getpid(), Started: time.Now(),
		Servers: []ServerInfo{{Addr: addr, PID: os.Getpid()}},
	}
	b, err := json.Marshal(info)
	fail(err)
	fail(os.WriteFile(filepath.Join(dir, infoFile), b, 0o644))
	l, err := net.Listen("unix", filepath.Join(dir, controlFile))
	fail(err)
	fail(os.Chmod(filepath.Join(dir, controlFile), 0o666))
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		fail(err)
		if line, err := bufio.NewReader(c).ReadBytes('\n'); err == nil && len(line) > 0 {
			fmt.Printf("heard %s", line)
		}
		_ = writeLine(c, reply{Info: &info})
	}
}

// startImpostor starts impostorMain as mallory and returns what it has heard.
func startImpostor(t *testing.T, dir string) (heard func() []string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "impostor", dir, "127.0.0.1:9")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: mallory, Gid: mallory}}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range lines {
		}
		_ = cmd.Wait()
	})
	if line := <-lines; line != "ready" {
		t.Fatalf("the impostor says %q", line)
	}
	return func() (all []string) {
		for {
			select {
			case line := <-lines:
				all = append(all, line)
			case <-time.After(50 * time.Millisecond):
				return all
			}
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can start a process of another user")
	}
}

// sharedDir is a directory like /tmp: all users write, and none removes what
// is another's.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Dir(shortDir(t))
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	return dir
}

// uses are all ways to use a runtime directory.
var uses = map[string]func(ctx context.Context, dir string) error{
	"describe": func(ctx context.Context, dir string) error { _, err := Describe(ctx, dir); return err },
	"find": func(ctx context.Context, dir string) error {
		c, err := find(ctx, dir)
		if err == nil {
			err = c.Close()
		}
		return err
	},
	"reset": func(ctx context.Context, dir string) error { _, err := Reset(ctx, dir); return err },
	"stop":  func(ctx context.Context, dir string) error { return Stop(ctx, dir) },
	"clear": Clear,
	"start": startOnly,
	"join": func(ctx context.Context, dir string) error {
		s, err := Join(ctx, JoinOptions{
			Size: Size{Servers: 1}, Addrs: []string{filepath.Join(dir, socketName(0))}, Dir: dir, Provider: fakeProvider{},
		})
		if err == nil {
			err = s.Close()
		}
		return err
	},
	"connect": func(ctx context.Context, dir string) error {
		c, err := Connect(ctx, ConnectOptions{Address: &Address{Dir: dir}})
		if err == nil {
			err = c.Close()
		}
		return err
	},
}

// refuseAll checks that every use of dir is refused, with one line that names
// the directory and holds why.
func refuseAll(t *testing.T, dir, why string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := uses[name](ctx, dir)
		cancel()
		if !errors.Is(err, ErrDir) || !strings.Contains(fmt.Sprint(err), why) ||
			!strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want ErrDir with %q", name, err, why)
		}
	}
}

func TestRuntimeDirMadeByAnotherUser(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(sharedDir(t), "drtmx-"+strconv.Itoa(os.Getuid()))
	heard := startImpostor(t, dir)
	refuseAll(t, dir, "belongs to uid 4242")
	if lines := heard(); len(lines) > 0 {
		t.Errorf("the impostor received %q", lines)
	}
}

// The directory is fit by the time it is used, but somebody else listens in it.
func TestControlSocketOfAnotherUser(t *testing.T) {
	needRoot(t)
	dir := sharedDir(t)
	heard := startImpostor(t, dir)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"describe", "find", "reset", "stop"} {
		if err := uses[name](t.Context(), dir); err == nil || !strings.Contains(err.Error(), "uid 4242") {
			t.Errorf("%s: %v; want the refusal of uid 4242", name, err)
		}
	}
	if lines := heard(); len(lines) > 0 {
		t.Errorf("the impostor received %q", lines)
	}
}

func TestUnsafeRuntimeDirs(t *testing.T) {
	t.Run("writable", func(t *testing.T) {
		refuseAll(t, sharedDir(t), "mode 0777")
	})
	t.Run("symbolic link", func(t *testing.T) {
		parent := sharedDir(t)
		target, link := filepath.Join(parent, "own"), filepath.Join(parent, "link")
		if err := errors.Join(os.Mkdir(target, 0o700), os.Symlink(target, link)); err != nil {
			t.Fatal(err)
		}
		refuseAll(t, link, "symbolic link")
	})
	t.Run("file", func(t *testing.T) {
		file := filepath.Join(sharedDir(t), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		refuseAll(t, file, "not a directory")
	})
	t.Run("parent that all may write", func(t *testing.T) {
		parent := sharedDir(t)
		dir := filepath.Join(parent, "own")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(parent, 0o777)); err != nil {
			t.Fatal(err)
		}
		refuseAll(t, dir, "can be replaced")
	})
	t.Run("parent of another user", func(t *testing.T) {
		needRoot(t)
		parent := sharedDir(t)
		dir := filepath.Join(parent, "own")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(parent, 0o755), os.Chown(parent, mallory, mallory)); err != nil {
			t.Fatal(err)
		}
		refuseAll(t, dir, "can be replaced")
	})
	t.Run("parent is another user's link", func(t *testing.T) {
		needRoot(t)
		parent := sharedDir(t)
		real, link := filepath.Join(parent, "real"), filepath.Join(parent, "link")
		dir := filepath.Join(real, "own")
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Symlink(real, link), os.Lchown(link, mallory, mallory)); err != nil {
			t.Fatal(err)
		}
		refuseAll(t, filepath.Join(link, "own"), "can be replaced")
	})
}

// A cluster of this user can be used through a directory whose mode is fit
// though not 0700, and through a link to a parent.
func TestFitRuntimeDirs(t *testing.T) {
	parent := sharedDir(t)
	dir := filepath.Join(parent, "own")
	link := filepath.Join(parent, "link")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink(parent, link)); err != nil {
		t.Fatal(err)
	}
	stop, ended := serveIn(t, filepath.Join(link, "own"))
	if _, err := Describe(t.Context(), dir); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestRuntimeDirsArePrivate: a runtime directory, the one above it if that is made
// too, and the store's within are made for this user alone, whatever the umask is.
func TestRuntimeDirsArePrivate(t *testing.T) {
	old := syscall.Umask(0)
	t.Cleanup(func() { syscall.Umask(old) })
	private := func(t *testing.T, dirs ...string) {
		t.Helper()
		for _, dir := range dirs {
			st, err := os.Stat(dir)
			if err != nil {
				t.Fatal(err)
			}
			if mode := st.Mode().Perm(); mode != 0o700 {
				t.Errorf("%s is made with mode %04o, want 0700", filepath.Base(dir), mode)
			}
		}
	}
	t.Run("of a cluster", func(t *testing.T) {
		above := shortDir(t)
		dir := filepath.Join(above, "own")
		d, err := openDir(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.close()
		private(t, above, dir)
		s := &supervisor{dir: d, opts: StartOptions{
			Hosts:   &Hosts{Members: func(context.Context, string, string) (func() error, error) { return nil, nil }},
			members: &member.Location{Endpoints: []string{"unix:" + filepath.Join(dir, storeDir, storeSocket)}},
		}}
		if err := s.startStore(t.Context()); err != nil {
			t.Fatal(err)
		}
		private(t, filepath.Join(dir, storeDir))
	})
	t.Run("of a data server", func(t *testing.T) {
		above := shortDir(t)
		dir := filepath.Join(above, "own")
		p, err := takePID(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer p.release()
		private(t, above, dir)
	})
}
