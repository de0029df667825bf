package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"drtmx/internal/cluster"
)

// signalserver DIR INDEX|supervisor SIGNAL sends a signal to a process of the
// cluster in DIR.
func signalServer(ts *testscript.TestScript, _ bool, args []string) {
	b, err := os.ReadFile(filepath.Join(ts.MkAbs(args[0]), "cluster.json"))
	ts.Check(err)
	var info cluster.Info
	ts.Check(json.Unmarshal(b, &info))
	pid := info.Supervisor
	if args[1] != "supervisor" {
		i, err := strconv.Atoi(args[1])
		ts.Check(err)
		pid = info.Servers[i].PID
	}
	signals := map[string]syscall.Signal{"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT, "KILL": syscall.SIGKILL}
	ts.Check(syscall.Kill(pid, signals[args[2]]))
}

// status FILE SERVERS PARTITIONS [busy] checks what cluster status says of a
// loaded cluster in JSON.
func checkStatus(ts *testscript.TestScript, _ bool, args []string) {
	var st clusterStatus
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &st))
	if strconv.Itoa(len(st.Servers)) != args[1] || strconv.Itoa(len(st.Partitions)) != args[2] {
		ts.Fatalf("%d servers, %d partitions", len(st.Servers), len(st.Partitions))
	}
	commits, held := 0.0, 0
	for i, s := range st.Servers {
		if s.State != stateReady || s.Server != i || s.PID == 0 || s.Incarnation == 0 || s.UsedBytes == 0 || s.UsedBytes > s.LimitBytes || s.RPCs <= 0 {
			ts.Fatalf("server: %+v", s)
		}
		commits += s.Commits
		held += len(s.Partitions)
	}
	rows := uint64(0)
	for i, p := range st.Partitions {
		if p.Partition != i || p.State != stateReady || !slices.Contains(st.Servers[p.Server].Partitions, i) {
			ts.Fatalf("partition: %+v", p)
		}
		rows += p.Rows
	}
	if held != len(st.Partitions) || rows == 0 || len(st.Models) == 0 {
		ts.Fatalf("%d partitions held, %d rows, %d models", held, rows, len(st.Models))
	}
	for _, m := range st.Models {
		if m.Rows > 0 && (m.Submodels == 0 || m.ModelBytes == 0 || m.TTBytes == 0) {
			ts.Fatalf("model: %+v", m)
		}
	}
	if busy := len(args) > 3; busy != (commits > 0) {
		ts.Fatalf("%v commits per second", commits)
	}
}

// grown FILE waits until a file has something in it.
func grown(ts *testscript.TestScript, _ bool, args []string) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if st, err := os.Stat(ts.MkAbs(args[0])); err == nil && st.Size() > 0 {
			return
		}
	}
	ts.Fatalf("%s: still empty after a minute", args[0])
}
