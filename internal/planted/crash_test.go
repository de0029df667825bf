package planted

import "slices"

// crashBugs are bugs that random crashes have found.
var crashBugs = []bug{
	{
		name: "OwnReadsWithoutLife", why: "a data server's own client validates what it has read without a connection, in no known epoch",
		edits: []edit{{
			file: "internal/exec/validate.go",
			old:  "	if t.where.local != nil {\n		if err := v.meetRead(t); err != nil {\n			return t.fail(err)\n		}\n	}\n",
			new:  "",
		}, {
			file: "internal/exec/validate.go",
			old:  "// check re-reads proofs: the quick ones",
			new:  "var _ = (*validator).meetRead\n\n// check re-reads proofs: the quick ones",
		}},
		caught: []test{{"server", "TestViewOfOwnServer", "nil pointer dereference"}},
	},
	{
		name: "RefusedIsAnAnswer", why: "a session that asks twice for an outcome takes the refusal for the commit's answer",
		edits: []edit{{
			file: "internal/exec/outcome.go",
			old:  "(wire.Code(resp[0]) == wire.Unknown || wire.Code(resp[0]) == wire.Aborted):",
			new:  "wire.Code(resp[0]) == wire.Unknown:",
		}},
		caught: []test{{"server", "TestOutcomeAskedTwice", "protocol error"}},
	},
	{
		name: "DoubtIsProtocolError", why: "a load that a failing log leaves in doubt ends with an error of the protocol",
		edits: []edit{{
			file: "internal/exec/fault.go",
			old:  " wire.InDoubt: ErrUnavailable,",
			new:  "",
		}},
		caught: []test{{"server", "TestErrorsOfAFailedLog", "a load: .*protocol error"}},
	},
	{
		name: "FailedLogIsProtocolError", why: "a change of the catalogue that the log does not take ends with an error of the protocol",
		edits: []edit{{
			file: "server/catalog.go",
			old:  "	case errors.Is(err, wal.ErrNoSpace), errors.Is(err, wal.ErrFailed), errors.Is(err, wal.ErrClosed):\n",
			new:  "	case errors.Is(err, wal.ErrNoSpace):\n",
		}},
		caught: []test{{"server", "TestErrorsOfAFailedLog", "a table: .*protocol error"}},
	},
	{
		name: "ChangeIsNotSpread", why: "a change of the catalogue that the orderer decided before it crashed does not reach the other servers",
		edits: []edit{{
			file: "server/build.go",
			old:  "	if v := cat.spread(cat.Load(), nobody); !v.ok() {\n		return // the server stops\n	}\n",
			new:  "",
		}},
		caught: []test{{"server", "TestCrashInAChange", "of the catalogue, want"}},
	},
}

func init() { bugs = slices.Concat(bugs, crashBugs) }
