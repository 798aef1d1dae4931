import dqn_vec as d, warnings, sys, io, contextlib, torch
warnings.simplefilter("ignore")
A=d.A
real=torch.manual_seed
for seed in (1,2,3):
    for name, mode, mask in (("same", A.SAME_STEP, False), ("next mask", A.NEXT_STEP, True)):
        torch.manual_seed = lambda s, seed=seed: real(seed)
        with contextlib.redirect_stdout(io.StringIO()) as out: d.run(name, mode, d.S(8000), n=3, mask=mask)
        print(seed, name, [l for l in out.getvalue().splitlines() if "returns" in l or l.startswith("bad")])
