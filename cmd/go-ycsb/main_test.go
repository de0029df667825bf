package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"drtmx/internal/cluster"
	"drtmx/internal/placement"
	"drtmx/internal/testaddr"
	"drtmx/internal/testseed"
	"drtmx/rdma/multi"
	"drtmx/rdma/shm"
	"drtmx/ycsb"
	"drtmx/ycsb/props"
	"drtmx/ycsb/usertable"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"go-ycsb":      main,
		"ycsb-cluster": serveCluster,
		"ycsb-server":  serveAlone,
	})
}

// serveCluster is what drtmx serve --workload ycsb --servers 2 does.
func serveCluster() {
	err := func() error {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		p, err := props.Load(nil, nil)
		if err != nil {
			return err
		}
		layout, err := usertable.Read(p)
		if err != nil {
			return err
		}
		catalog, err := layout.Catalog(2)
		if err != nil {
			return err
		}
		workload, err := usertable.WorkloadName(catalog)
		if err != nil {
			return err
		}
		fabric, err := shm.New(shm.Options{})
		if err != nil {
			return err
		}
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		exe = strings.TrimSuffix(exe, "ycsb-cluster") + "go-ycsb"
		c, err := cluster.Start(ctx, cluster.StartOptions{
			Dir: os.Args[1], Version: "test", Size: cluster.Size{Servers: 2}, Provider: fabric,
			Command: []string{exe, childCommand}, Workload: cluster.Workload{Name: workload},
		})
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-c.Lost():
		}
		return errors.Join(c.Err(), c.Close())
	}()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serveAlone is what drtmx serve --workload ycsb --index INDEX --fabrics tcp
// --runtime-dir DIR --members ADDR,ADDR does.
func serveAlone() {
	if err := serveOne(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveOne(number, dir string, members []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	index, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	p, err := props.Load(nil, nil)
	if err != nil {
		return err
	}
	layout, err := usertable.Read(p)
	if err != nil {
		return err
	}
	catalog, err := layout.Catalog(len(members))
	if err != nil {
		return err
	}
	name, err := usertable.WorkloadName(catalog)
	if err != nil {
		return err
	}
	w, err := ycsb.Workload(name)
	if err != nil {
		return err
	}
	f, err := cluster.NewFabrics(multi.Options{})
	if err != nil {
		return err
	}
	s, err := cluster.Join(ctx, cluster.JoinOptions{
		Size: cluster.Size{Servers: len(members)}, Index: placement.Server(index), Dir: dir, Provider: f, Workload: w,
		Addrs: cluster.MemberAddrs(len(members), []string{multi.TCP}, "", members),
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return s.Close()
}

// freeaddr NAME sets an environment variable to an address of the loopback
// interface that nobody listens on and no other script is given.
func freeAddr(ts *testscript.TestScript, _ bool, args []string) {
	addrs, err := testaddr.New(1)
	ts.Check(err)
	ts.Setenv(args[0], addrs[0])
}

// haveShm reports whether data servers can be processes here. Under the race
// tag regions live on the Go heap, which no other process can map.
func haveShm() bool { return !testseed.Race && shm.Available() == nil }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Condition: func(name string) (bool, error) {
			if name == "shm" {
				return haveShm(), nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await":     awaitFile,
			"freeaddr":  freeAddr,
			"says":      says,
			"emptytemp": emptyTemp,
			"oneline":   oneLine,

			"killserver": killServer,
		},
	})
}

// await FILE waits until a file exists.
func awaitFile(ts *testscript.TestScript, _ bool, args []string) {
	for deadline := time.Now().Add(2 * testseed.Patience()); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
	}
	ts.Fatalf("%s: still absent after %v", args[0], 2*testseed.Patience())
}

// says FILE PATTERN waits until a file matches a pattern.
func says(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile(args[1])
	var b []byte
	for deadline := time.Now().Add(2 * testseed.Patience()); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if b, _ = os.ReadFile(ts.MkAbs(args[0])); pattern.Match(b) {
			return
		}
	}
	ts.Fatalf("%s does not say %q after %v: %s", args[0], pattern, 2*testseed.Patience(), b)
}

// killserver FILE kills the first data server of the cluster that FILE describes.
func killServer(ts *testscript.TestScript, _ bool, args []string) {
	var info cluster.Info
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &info))
	ts.Check(syscall.Kill(info.Servers[0].PID, syscall.SIGKILL))
}

// emptytemp checks that nothing was left in the directory for temporary files.
func emptyTemp(ts *testscript.TestScript, _ bool, _ []string) {
	left, err := os.ReadDir(ts.Getenv("TMPDIR"))
	if err != nil && !os.IsNotExist(err) {
		ts.Fatalf("%v", err)
	}
	for _, e := range left {
		ts.Fatalf("left behind: %s", e.Name())
	}
}

// oneline checks that standard error is one line, as every bad input gets.
func oneLine(ts *testscript.TestScript, _ bool, _ []string) {
	text := ts.ReadFile("stderr")
	if strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "go-ycsb: ") {
		ts.Fatalf("want one line that begins with go-ycsb:, got %q", text)
	}
}
