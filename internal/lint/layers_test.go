package lint

import (
	"go/build/constraint"
	"maps"
	"slices"
	"strings"
	"testing"
)

// layers is the layer table: a package may import only packages of lower
// layers, and its own subpackages of the same layer. Every package of the
// module must be listed; to add a package, decide its layer here.
var layers = map[string]int{
	"internal/invariants": 0,
	"internal/rng":        0,
	"internal/hist":       0,
	"internal/plot":       0,
	"internal/certs":      0,
	"internal/cli":        0,
	"internal/lint":       0,
	"internal/planted":    0,
	"internal/history":    0,
	"internal/clock":      0,
	"internal/placement":  0,
	"internal/stall":      0,
	"internal/keysets":    0,
	"internal/testaddr":   0,
	"internal/testseed":   0,
	"internal/vfstest":    0,

	"internal/sim":           3,
	"internal/sim/goruntime": 3,

	"internal/sim/simulate": 4,

	"internal/clock/clocktest": 0,

	"internal/mem":      1,
	"internal/twophase": 1,
	"internal/replica":  1,

	"rdma": 2,

	"rdma/internal/provide": 3,
	"rdma/rdmatest":         3,
	"internal/block":        3,

	"rdma/inproc": 4,
	"rdma/shm":    4,
	"rdma/tcp":    4,
	"rdma/verbs":  4,
	"rdma/multi":  5,

	"index":           4,
	"index/indextest": 5,

	"index/hash":          5,
	"index/learned":       5,
	"index/learned/leaf":  5,
	"index/learned/inner": 5,
	"index/learned/model": 5,
	"index/learned/tree":  5,
	"index/learned/train": 5,
	"index/learned/read":  5,
	"index/rolex":         6,
	"index/finestore":     6,
	"index/engine":        7,

	"txn/stats":    5,
	"tables":       5,
	"internal/wal": 5,

	"internal/image": 5,

	"internal/wire": 6,
	"internal/redo": 7,

	"internal/datadir": 5,
	// What only commands of this module tell a data server.
	"internal/hosting": 6,

	"internal/exec": 8,

	"internal/changes": 9,

	"txn": 10,

	"server":          11,
	"internal/member": 11,

	"internal/cluster":           12,
	"internal/load":              12,
	"internal/member/etcd":       12,
	"internal/member/membertest": 12,

	"internal/backup":               12,
	"internal/metrics":              13,
	"internal/member/etcd/embedded": 13,

	"ycsb/props":     11,
	"ycsb/usertable": 12,

	"tpcc":       12,
	"tpcc/bench": 13,
	"ycsb":       13,
	"ycsb/bench": 13,

	"internal/command": 14,
	"cmd/go-ycsb":      14,

	"server/serve":        15,
	"server/metrics":      14,
	"cmd/drtmx":           15,
	"results/figures":     14,
	"results/indexes":     15,
	"results/peers":       15,
	"results/longreads":   15,
	"results/durability":  15,
	"results/failovers":   15,
	"results/replication": 15,
	"results/paired":      15,
	"results/papers":      15,

	"docs": 16,
}

// learnedIndex lists what the packages of the learned index import of each
// other, within and beside its layer. The server half is tree and train, the
// client half is read. They share the layout, leaf and model, and nothing else.
var learnedIndex = map[string][]string{
	"index/learned/leaf":  {},
	"index/learned/inner": {},
	"index/learned/model": {"index/learned/leaf"},
	"index/learned/tree":  {"index/learned/leaf", "index/learned/inner"},
	"index/learned/train": {"index/learned/leaf", "index/learned/model", "index/learned/tree"},
	"index/learned/read":  {"index/learned/leaf", "index/learned/inner", "index/learned/model"},
	"index/learned":       {"index/learned/leaf", "index/learned/model", "index/learned/tree", "index/learned/train"},
}

// providers implement the fabric. The engine uses only the contract; the
// package that wires a cluster chooses the provider.
var providers = []string{"rdma/inproc", "rdma/shm", "rdma/tcp", "rdma/verbs", "rdma/multi"}

// mayChooseProvider lists the packages that may import a provider outside
// tests. server is in it for the embedded cluster that it offers to programs,
// ycsb because go-ycsb creates its databases.
var mayChooseProvider = []string{"server", "rdma/multi", "internal/cluster", "ycsb", "internal/command", "results/longreads"}

func TestImportsRunDownward(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range sources(t) {
		seen[f.pkg] = true
		from, known := layers[f.pkg]
		if !known {
			t.Errorf("%s: package %s is not in the layer table of internal/lint", f.path, f.pkg)
			continue
		}
		if f.test {
			continue // a test may reach up for its fixtures; the compiler excludes cycles
		}
		for _, imp := range f.imports {
			path, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			to, known := layers[path]
			mine, learned := learnedIndex[f.pkg]
			_, alike := learnedIndex[path]
			switch {
			case !known:
				t.Errorf("%s: imports %s, which is not in the layer table", f.path, path)
			case learned && alike:
				if !slices.Contains(mine, path) {
					t.Errorf("%s: imports %s; the halves of the learned index share its layout only", f.path, path)
				}
			case from > to || from == to && strings.HasPrefix(path, f.pkg+"/"):
			default:
				t.Errorf("%s: %s (layer %d) imports %s (layer %d)", f.path, f.pkg, from, path, to)
			}
		}
	}
	for _, pkg := range []string{"rdma", "txn", "internal/mem"} {
		if !seen[pkg] {
			t.Errorf("package %s was not found: the test looks in the wrong place", pkg)
		}
	}
}

func TestProvidersAreChosenByTheWiring(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || strings.HasSuffix(f.pkg, "test") || slices.Contains(mayChooseProvider, f.pkg) {
			continue
		}
		for _, imp := range f.imports {
			path, _ := strings.CutPrefix(imp, module+"/")
			if slices.Contains(providers, path) && !strings.HasPrefix(f.pkg, path) {
				t.Errorf("%s: imports provider %s", f.path, path)
			}
		}
	}
}

// etcdHomes are the packages that may import etcd. Only the embedded one may
// import etcd's server, which is large.
var etcdHomes = []string{"internal/member/etcd", "internal/member/etcd/embedded"}

// mayLinkEtcd lists the packages that may import etcdHomes outside tests:
// programs. Packages that users embed do not link etcd.
var (
	mayLinkEtcd       = []string{"internal/member/etcd/embedded", "internal/command", "server/serve", "cmd/go-ycsb", "ycsb"}
	mayLinkEtcdServer = []string{"internal/command"}
)

func TestEtcdStaysOutOfWhatIsEmbedded(t *testing.T) {
	imports := map[string][]string{} // by package, of its own files only
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		for _, imp := range f.imports {
			path, _ := strings.CutPrefix(imp, module+"/")
			imports[f.pkg] = append(imports[f.pkg], path)
			foreign := strings.HasPrefix(imp, "go.etcd.io/") || strings.HasPrefix(imp, "google.golang.org/grpc") || strings.HasPrefix(imp, "go.uber.org/zap")
			switch {
			case foreign && !slices.Contains(etcdHomes, f.pkg):
				t.Errorf("%s: imports %s", f.path, imp)
			case strings.HasPrefix(imp, "go.etcd.io/etcd/server") && f.pkg != "internal/member/etcd/embedded":
				t.Errorf("%s: imports etcd's server", f.path)
			case path == "internal/member/etcd" && !slices.Contains(mayLinkEtcd, f.pkg),
				path == "internal/member/etcd/embedded" && !slices.Contains(mayLinkEtcdServer, f.pkg):
				t.Errorf("%s: imports %s", f.path, path)
			}
		}
	}
	for _, root := range []string{"txn", "server", "tables", "index", "index/hash", "index/learned", "internal/member", "internal/cluster"} {
		if via := reaches(imports, root, "go.etcd.io/"); via != nil {
			t.Errorf("%s imports etcd: %s", root, strings.Join(via, " -> "))
		}
	}
	if reaches(imports, "internal/member/etcd", "go.etcd.io/") == nil {
		t.Error("internal/member/etcd does not import etcd: the test looks in the wrong place")
	}
}

// reaches finds a way from a package to imports that begin with a prefix.
func reaches(imports map[string][]string, from, prefix string) []string {
	seen := map[string]bool{}
	var walk func(pkg string) []string
	walk = func(pkg string) []string {
		if strings.HasPrefix(pkg, prefix) {
			return []string{pkg}
		}
		if seen[pkg] {
			return nil
		}
		seen[pkg] = true
		for _, imp := range imports[pkg] {
			if via := walk(imp); via != nil {
				return append([]string{pkg}, via...)
			}
		}
		return nil
	}
	return walk(from)
}

func TestTestSupportIsImportedByTestsOnly(t *testing.T) {
	for _, f := range sources(t) {
		if f.test || strings.HasSuffix(f.pkg, "test") {
			continue
		}
		for _, imp := range f.imports {
			if strings.HasPrefix(imp, module+"/") && strings.HasSuffix(imp, "test") {
				t.Errorf("%s: imports test support %s", f.path, imp)
			}
		}
	}
}

// Released code has no trace of planted bugs: they are edits of its text.
func TestPlantedBugsStayOutOfTheSource(t *testing.T) {
	for _, f := range sources(t) {
		if f.pkg == "internal/planted" {
			if !f.test && len(f.file.Decls) > 0 {
				t.Errorf("%s: code outside tests", f.path)
			}
			continue
		}
		if slices.Contains(f.imports, module+"/internal/planted") {
			t.Errorf("%s: imports internal/planted", f.path)
		}
		for _, group := range f.file.Comments {
			for _, c := range group.List {
				if expr, err := constraint.Parse(c.Text); err == nil && constraint.IsGoBuild(c.Text) {
					expr.Eval(func(tag string) bool {
						if tag == "planted" {
							t.Errorf("%s: build tag %s", f.path, tag)
						}
						return true
					})
				}
			}
		}
	}
}

// The history checker judges the engine, so it must share no code with it.
func TestHistoryCheckerImportsOnlyTheStandardLibrary(t *testing.T) {
	for _, f := range sources(t) {
		if f.pkg != "internal/history" || f.test {
			continue
		}
		for _, imp := range f.imports {
			if strings.Contains(strings.Split(imp, "/")[0], ".") || strings.HasPrefix(imp, module+"/") {
				t.Errorf("%s: imports %s", f.path, imp)
			}
		}
	}
}

// Each engine imports only the contract, not another engine.
func TestIndexEnginesAreIndependent(t *testing.T) {
	engines := slices.Sorted(maps.Keys(layers))
	engines = slices.DeleteFunc(engines, func(p string) bool { return !strings.HasPrefix(p, "index/") })
	for _, f := range sources(t) {
		if f.test || !slices.Contains(engines, f.pkg) || strings.HasSuffix(f.pkg, "test") {
			continue
		}
		engine := strings.Join(strings.Split(f.pkg, "/")[:2], "/")
		if engine == "index/engine" {
			continue // it chooses among them
		}
		for _, imp := range f.imports {
			path, _ := strings.CutPrefix(imp, module+"/")
			other := slices.Contains(engines, path) && path != engine && !strings.HasPrefix(path, engine+"/")
			if (f.pkg == "index/rolex" || f.pkg == "index/finestore") && slices.Contains([]string{"index/learned/leaf", "index/learned/model", "index/learned/train"}, path) {
				continue // their leaves and models are of the same packages, for the same readers
			}
			if other || path == "tables" {
				t.Errorf("%s: index engine imports %s", f.path, path)
			}
		}
	}
}
