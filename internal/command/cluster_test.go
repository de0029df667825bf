package command

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"drtmx/internal/cluster"
	"drtmx/internal/member"
	"drtmx/internal/member/etcd"
	"drtmx/internal/placement"
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

// synced DIR waits until all data servers of the hosts in a runtime directory have a
// copy in sync.
func copiesInSync(ts *testscript.TestScript, _ bool, args []string) {
	awaitMembers(ts, args[0], func(s *member.State, i int) bool {
		m := s.Map.Set(placement.Server(i)).Members
		return m.Without(0) != 0 && m.Has(0)
	})
}

// home DIR waits until all data servers of the hosts in a runtime directory are at
// their own host.
func allAtHome(ts *testscript.TestScript, _ bool, args []string) {
	awaitMembers(ts, args[0], func(s *member.State, i int) bool {
		now, ok := s.Map.Server(placement.Server(i))
		return ok && now.Host == i
	})
}

// awaitMembers waits until something holds for all data servers, and all have a lease.
func awaitMembers(ts *testscript.TestScript, dir string, ok func(s *member.State, server int) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience())
	defer cancel()
	c, err := cluster.Connect(ctx, cluster.ConnectOptions{Dir: ts.MkAbs(dir), Members: etcd.OpenExisting})
	ts.Check(err)
	defer c.Close()
	for all := false; !all; time.Sleep(20 * time.Millisecond) {
		s, err := c.Members(ctx)
		ts.Check(err)
		all = true
		for i := range s.Map.Size {
			_, alive := s.Registered(placement.Server(i))
			all = all && alive && ok(s, i)
		}
	}
}

// moved FILE SERVER HOST checks that cluster status says in JSON where a data server
// is.
func checkMoved(ts *testscript.TestScript, _ bool, args []string) {
	var st clusterStatus
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &st))
	server, err := strconv.Atoi(args[1])
	ts.Check(err)
	host, err := strconv.Atoi(args[2])
	ts.Check(err)
	s := &st.Servers[server]
	if s.Members == nil || s.Members.Host != host || !s.Members.Registered || !slices.Contains(s.Members.InSync, host) ||
		s.State == stateNoAnswer || !slices.Contains(st.Hosts[host].Servers, server) || s.PID != st.Hosts[host].PID {
		ts.Fatalf("server %+v with %+v, hosts %+v", s, s.Members, st.Hosts)
	}
}

// mode700 DIR... checks that only the owner may enter the directories.
func mode700(ts *testscript.TestScript, _ bool, args []string) {
	for _, f := range args {
		st, err := os.Stat(ts.MkAbs(f))
		ts.Check(err)
		if !st.IsDir() || st.Mode().Perm() != 0o700 {
			ts.Fatalf("%s has mode %v", f, st.Mode())
		}
	}
}

// hoststate DIR HOST STATE waits until the supervisor says that a host is in a state.
func hostState(ts *testscript.TestScript, _ bool, args []string) {
	host, err := strconv.Atoi(args[1])
	ts.Check(err)
	for deadline := time.Now().Add(2 * patience()); ; time.Sleep(20 * time.Millisecond) {
		i, err := cluster.Describe(context.Background(), ts.MkAbs(args[0]))
		ts.Check(err)
		if i.Servers[host].State == args[2] {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("host %d %s after %v, want that it %s", host, i.Servers[host].State, 2*patience(), args[2])
		}
	}
}

// says FILE PATTERN waits until a file matches a pattern.
func says(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile(args[1])
	var b []byte
	for deadline := time.Now().Add(2 * patience()); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if b, _ = os.ReadFile(ts.MkAbs(args[0])); pattern.Match(b) {
			return
		}
	}
	ts.Fatalf("%s does not say %q after %v: %s", args[0], pattern, 2*patience(), b)
}

// grown FILE waits until a file has something in it.
func grown(ts *testscript.TestScript, _ bool, args []string) {
	for deadline := time.Now().Add(2 * patience()); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if st, err := os.Stat(ts.MkAbs(args[0])); err == nil && st.Size() > 0 {
			return
		}
	}
	ts.Fatalf("%s: still empty after %v", args[0], 2*patience())
}
