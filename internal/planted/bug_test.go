package planted

import "slices"

// bug is one way to make the engine wrong.
type bug struct {
	name   string
	why    string // what the engine does wrong
	edits  []edit
	caught []test // every one of these must fail; empty for bugs that the simulator finds
}

// edit replaces text in one file. The old text occurs in the file exactly once.
type edit struct {
	file     string // path from the root of the module
	old, new string
}

// test is a test that fails because of a bug, and passes without it.
type test struct {
	pkg  string // path from the root of the module
	name string // as in the output of go test: TestX/case of X
	want string // regular expression that the output of the failure matches
}

// bugs lists every bug.
var bugs = slices.Concat(transactionBugs, horizonBugs, serverBugs, twophaseBugs, blockBugs, reuseBugs, hashBugs, pastBugs, treeBugs, treePastBugs, finestoreBugs, readerBugs, readerPastBugs, fabricBugs, memberBugs, backupBugs, gateBugs, replicaBugs, trustBugs, takeoverBugs)
