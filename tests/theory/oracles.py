"""Numbers that queueing theory gives, under their ids; times in mean services.

``Wq`` is the mean wait before service, ``W`` the mean time from arrival to departure,
``X`` a throughput. Nothing here comes from this simulator: each number follows from the
formula beside it, and has been checked by a simulation that shares no code with it.
"""

ORACLES = {
    # M/M/1: Wq = rho / (mu - lambda).
    "A01_mm1": {
        "Wq": 4.000000000000001,
        "P_wait0": 0.19999999999999996,  # 1 - rho
        "W_p50": 3.465735902799727,  # P(W > t) = exp(-(mu - lambda) t)
        "W_p95": 14.978661367769957,
        "W_p99": 23.025850929940464,
    },
    "A01_mm1_rho0.3": {"Wq": 0.4285714285714286},
    "A01_mm1_rho0.5": {"Wq": 1.0},
    "A01_mm1_rho0.7": {"Wq": 2.333333333333333},
    "A01_mm1_rho0.9": {"Wq": 9.000000000000002},
    "A01_mm1_rho0.95": {"Wq": 18.999999999999982},
    # M/D/1: half of M/M/1.
    "A03_md1": {"Wq": 2.0},
    # M/G/1, Pollaczek and Khinchine: Wq = lambda E[S^2] / (2 (1 - rho)).
    "A04a_mg1_uniform": {"Wq": 2.6666666666666674},
    "A04b_mg1_hotcold": {"Wq": 6.500000000000003},
    "A04c_mg1_h2": {
        "Wq": 5.833333333333334,
        "p": 0.8872983346207417,
        "mean1": 0.5635083268962916,
        "mean2": 4.436491673103709,
    },
    "A04d_mg1_lognormal": {"Wq": 2.3333333333333335},
    # Two classes, non-preemptive (Cobham): W0/(1-r1), W0/((1-r1)(1-r)); and the
    # conservation law (Kleinrock): sum of rho_i Wq_i = rho W0/(1-rho).
    "A05a_mg1_prio_nonpreemptive": {
        "Wq1": 1.142857142857143,
        "Wq2": 5.714285714285716,
        "conservation": 3.200000000000001,
    },
    # Shortest job first (Phipps): Wq = int f(x) W0 / (1 - rho(x))^2 dx.
    "A05c_mm1_sjf_nonpreemptive": {"Wq": 1.8822186162397774},
    # Tandem M/M/1, product form: W = sum 1/(mu_i - lambda).
    "A06a_tandem": {"W": 6.0},
    # Closed cyclic networks, mean-value analysis: X = N / ((N + M - 1) D) if balanced.
    "A06c_closed_mva_balanced": {"X": 0.7272727272727273},
    "A06d_closed_mva": {"X": 0.4941176470588235, "X_bound": 0.5},
    # The largest of n: H_n; n/(n+1); by quadrature.
    "A07a_max_exp": {2: 1.5, 4: 2.083333333333333, 8: 2.7178571428571425},
    "A07b_max_uniform": {2: 0.6666666666666666, 4: 0.8, 8: 0.8888888888888888},
    "A07c_max_normal": {
        2: 0.5641895835477566,
        4: 1.029375373003964,
        8: 1.423600306045278,
    },
    # Fork and join of two M/M/1 queues (Flatto and Hahn): (12 - rho)/8 / (mu - lambda).
    "A07d_forkjoin_queue": {2: 7.000000000000001},
    # By hand: D_i = max(A_i, D_{i-1}) + S_i.
    "A16_lindley_hand": {
        "arrivals": [0, 1, 2, 6],
        "service": [3, 2, 4, 1],
        "start": [0, 3, 5, 9],
        "depart": [3, 5, 9, 10],
        "area_N": 18,
    },
    # By hand: D_ij = max(D_i,j-1, D_i-1,j) + S_ij.
    "A17_tandem_maxplus_hand": {
        "arrivals": [0, 1, 2, 6],
        "S1": [3, 2, 4, 1],
        "S2": [2, 2, 1, 5],
        "d1": [3, 5, 9, 10],
        "d2": [5, 7, 10, 15],
    },
    # Unit jobs: a hot one at 0, a cold and preferred one at 0, 1, 2, ...; budget 5.
    "F09_wait_budget_hand": {"start_ge": 5, "fifo": 0},
}
"""There is no station with several servers here, so no M/M/c: a GPU serves one job."""
